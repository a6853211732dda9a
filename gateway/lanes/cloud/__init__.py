"""The cloud lane: providers, through a worker process that alone imports litellm.

Modules:
    lane      The cloud lane: providers through the cloud worker's unix socket, paid by the token
    logprobs  The cloud models that return log-probabilities; requests for them are not routed to other models
    worker    The cloud worker: a process of its own that alone imports litellm and alone holds cloud keys
"""
