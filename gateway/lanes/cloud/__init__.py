"""The cloud lane: providers, through a worker process that alone imports litellm.

Modules:
    lane      The cloud lane: providers through the cloud worker's unix socket, paid by the token
    logprobs  Which cloud models give log-probabilities: the others are not offered to who asks for them
    worker    The cloud worker: a process of its own that alone imports litellm and alone holds cloud keys
"""
