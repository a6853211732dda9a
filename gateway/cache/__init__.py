"""The answer cache: stored answers, coalesced requests, and answers to similar questions.

Modules:
    answers           Answers that need no backend: stored ones, and ones that another caller of the same request
                      is getting
    coalesced_answer  Request coalescing: one answer in progress, and all callers that asked for the same meanwhile
    embedding         Embeds questions on your machines, to find answers to questions of the same meaning
    factory           Open the answer cache: in this process, and in Redis if one is configured
    fingerprint       The identity of a request: a hash of everything that shapes its answer, and of its owner
    recording_body    Copy an answer on its way to one caller, to store it if it is complete
    remote            Answers that several gateways share, unencrypted, in Redis
    semantic_index    Questions of the same meaning, by the cosine of their embeddings, without a matrix library
    stored            A stored answer, and the store in this process: bounded in number, bytes and time
"""
