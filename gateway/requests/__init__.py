"""One request from admission to settlement, in eight steps (docs/architecture.md).

Modules:
    attempt                 Tries one backend, up to the first bytes of its answer
    batch_jobs              Carry out batches: the same path as other requests, on idle capacity
    client                  The interface of a request's client, such as a connection
    context                 The state of a request in progress, and how it ended
    continuation            Continues a broken stream at another backend, from the text so far
    deadline                The time that a request allows for its first token
    delivery                Tracks the part of an answer that reached its caller
    drain_after_disconnect  Charge the reported token count of a paid answer if the caller disconnects after its
                            text and before its count
    failover_target         Finds the backend for the rest of a broken answer: the best allowed candidate, opened
                            up to its first bytes
    final_chunks            The end of a stream whose payer's funds are used up: as at a token limit, with the
                            reason
    finished                The end of a request: its usage, charge and settlement, handed to the ledger, the logs
                            and the metrics
    hedging                 Asks a second backend if the first is slow to begin
    holds                   The money behind a paid request: reserved before it is sent, and more of it while its
                            answer streams
    incremental_hold        A stream whose hold grows as it arrives: paid parts are passed on while more is
                            reserved
    model_loading           Loads a model before it is needed, or unloads it, if its backend supports that
    no_backend              The error for a request without candidates: it fits the empty ranking and quotes its
                            rejections
    opener                  Opens an answer at the best candidate, or at the one that replaces it before the first
                            byte
    outage                  Waits for another gateway that restarts, if it alone can answer a request
    preemptible_requests    Serve one preemptible request from admission to settled usage: without queue, quotas,
                            cache or other lanes
    queue_slot              Waits for a free slot, or for the end of a backend's pause, and updates the decision
                            meanwhile
    recall                  Finds an answer that exists already, or is being sent to another caller of the same
                            request
    replica_failover        Continues a broken stream at a replica: another backend with the same weights, after
                            the same tokens
    response_headers        The headers of every answer: the request's id, the backend, and the reason for the
                            choice
    resumable_stream        Tracks the part of a resumable stream that a caller has: chunks are forwarded when
                            their tokens are known
    serve                   One request from admission to settled ledger: enter, recall, choose, wait, open, send,
                            settle
    settlement              Finishes a request: releases its slots and holds, reports to routing, and books it
    split_event             Cuts an event to the part that the hold still covers
    stream_stitching        Joins one backend's stream to another's: keeps the text so far, and passes the rest on
                            as the same answer
    tally                   Estimates how much of an answer a stream has delivered so far, event by event, at low
                            cost
    truncation              Ends an answer where its paid part ends, and tells the caller why
"""
