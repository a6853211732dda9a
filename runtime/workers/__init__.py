"""Worker processes: started with one line of JSON, supervised, replaced without losing an answer.

Modules:
    app             What the applications of all workers do alike: bound requests, drop those whose client disconnects,
                    tell their health
    errors          The errors that a worker answers with, in the shape of OpenAI's
    exchange        One HTTP exchange over ASGI: a bounded body in, a JSON answer or a stream of events out, and
                    the hang-up
    health          The report of a worker process about itself
    lifecycle       Run a worker process: orders on stdin, health on stdout, a socket, an end with its parent
                    or SIGTERM
    logbook         The worker's log: one JSON line per event on stderr, which the supervisor passes on; no prompt,
                    no key
    supervisor      Supervise a worker process: start it, watch it, replace it without losing an answer
    worker_process  One worker process of the gateway: started in its own folder and session, monitored, and
                    stopped
"""
