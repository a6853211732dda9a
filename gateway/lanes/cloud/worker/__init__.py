"""The cloud worker: a process of its own that alone imports litellm and alone holds cloud keys.

The gateway's process imports `program`; both sides import `providers`. All other modules run only in the worker.

Modules:
    __main__       `python -m gateway.lanes.cloud.worker`: read one line of orders from stdin and serve them until
                   stdin closes
    adapters       litellm as a library of provider adapters and nothing else; no other module imports it
    answer_bounds  Size limits on providers' answers, set on every httpx client of the process: litellm's adapters
                   have none
    answers        litellm's answers as OpenAI's JSON: the standard fields, the public model name, nothing of
                   litellm's own
    app            The worker's HTTP application: limits its requests, and drops a request when its client
                   disconnects
    errors         The conversion of litellm's exceptions to `Refusal`
    keys           The file of cloud keys: `NAME=VALUE` lines, readable by its owner alone, read by the worker
                   alone
    program        The cloud worker's program, as the gateway runs it
    providers      The configuration that the gateway sends the cloud worker: models, providers, the keys file, and
                   every bound
    relay          One request to its provider: sends it, limits every wait, and forwards the answer piece by piece
    requests       The request bodies the worker accepts: the fields that reach litellm are exactly the ones listed
                   here
    schemas        How large a JSON schema becomes when its references are written out, which litellm does for some
                   providers
    server         The worker's process: prepares litellm, then serves its application until told to stop
"""
