"""Carry out batches: the same path as other requests, on idle capacity.

Modules:
    batch_service  Start a batch's next request if there is room for it, and handle its result
    dispatch       Send one request of a batch through the same pipeline as any request, and collect its answer
    lifecycle      The begin and the end of a batch: validate its lines, open its files, and write its final state
    runner         The one task that processes batches: finds them, opens them, starts their requests in turn, ends
                   them
"""
