"""The cloud worker: a process of its own that alone imports litellm and alone holds cloud keys.

gateway side   supervisor      start, watch, replace and stop the worker; hand out its socket
               worker_process  one such process, from launch to end
both sides     providers       what the gateway tells the worker: models, keys file, bounds
both sides     living          how a worker process lives: orders, socket, signals, the gateway's death
worker side    __main__        read the orders, then serve
               server          litellm made ready, the application served
               app             the HTTP application: places, keys, the hang-up
               exchange        one HTTP exchange over ASGI: bounded body, events
               relay           one request's talk with its provider, every wait bounded
               requests        the fields that are let through to litellm, and their types
               adapters        the only module that imports litellm
               schemas         how far a JSON schema's references would make it grow
               answers         litellm's answers in OpenAI's shape
               errors          litellm's exceptions in OpenAI's shape
               keys            the file of cloud keys
               logbook         one JSON line per event, without prompts and keys
"""
