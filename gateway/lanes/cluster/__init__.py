"""The cluster lane: one model's layers over several machines.

Modules:
    answers     Tokens of our own pipeline in OpenAI's words: chunks of a stream, or one whole answer
    choice      One choice of an answer as it is spoken: what of it is content, thought, or a call of a tool
    lane        The cluster lane: our own machines answer; the pipeline's tokens become OpenAI answers here
    logprobs    Log-probabilities of our own pipeline in OpenAI's words, as chats and as completions have them
    requests    A call of the API as the requests that a head takes: one for each prompt
    resumption  Between gateways: what one has of an answer that broke off at another's cluster, and wants the rest
                of
    tools       The constraints of a request on the cluster's answer: tools to call, allowed or required, and text
                schema
"""
