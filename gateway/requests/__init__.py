"""One request from admission to settlement, in eight steps (docs/architecture.md).

Modules:
    attempt               Tries one backend, up to the first bytes of its answer
    batch_jobs            Carry out batches: the same path as other requests, on idle capacity
    client                The interface of a request's client, such as a connection, and the base of sinks that pass
                          answers to one
    context               The state of a request in progress: what each step produced, as a value that does not change
                          afterwards
    continuation          Continues a broken stream at another backend, from the text so far
    delivery              Tracks the part of an answer that reached its caller
    entry                 Admits a request: a place in the gateway, its reservations in limits, and perhaps an answer
                          that exists already
    factory               Builds the paths of requests from the parts of the gateway
    failover_target       Finds the backend for the rest of a broken answer: the best allowed candidate, opened up to
                          its first bytes
    hedging               Asks a second backend if the first is slow to begin
    holds                 The money behind a paid request: reserved before it is sent, and more of it while its answer
                          streams
    incremental_hold      A stream whose hold grows as it arrives: paid parts are passed on while more is reserved
    model_loading         Loads a model before it is needed, or unloads it, if its backend supports that
    no_backend            The error for a request without candidates: it fits the empty ranking and quotes its
                          rejections
    opener                Opens an answer at the best candidate, or at the one that replaces it before the first byte
    outage                Waits for another gateway that restarts, if it alone can answer a request
    preemptible_requests  Serve one preemptible request from admission to settled usage: without queue, quotas, cache or
                          other lanes
    queue_slot            Waits for a free slot, or for the end of a backend's pause, and updates the decision meanwhile
    replica_failover      Continues a broken stream at a replica: another backend with the same weights, after the same
                          tokens
    response_headers      The headers of every answer: the request's id, the backend, and the reason for the choice
    resumable_stream      Tracks the part of a resumable stream that a caller has: chunks are forwarded when their
                          tokens are known
    sender                Sends an answer to its client, and settles the request in any case
    serve                 The path of a request: admit, decide, wait, open, send, settle; each step is one module
    settlement            Settles a request: releases its slots and holds, reports to routing and metrics, and books its
                          usage and charge
    tally                 Estimates how much of a stream's answer has been delivered, and cuts an event to the part that
                          is paid
    truncation            Ends an answer where its paid part ends, and tells the caller why
"""
