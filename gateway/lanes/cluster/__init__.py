"""The cluster lane: one model's layers over several machines.

Modules:
    answers     Writes tokens of the cluster's pipeline in OpenAI's format: chunks of a stream, or one whole answer
    choice      One choice of an answer while it is generated: its content, reasoning and tool calls
    comments    Comments at the beginning of a stream whose model is being loaded, so that clients and proxies do not
                time out
    lane        The cluster lane: it turns tokens of the cluster's pipeline into OpenAI answers
    requests    Converts an API call to the coordinator's requests: one for each prompt
    residence   Loads and unloads a model of the cluster, as Ollama's clients ask for it
    resumption  Resumption between gateways: the part of a broken answer that a gateway has, and whose rest it
                requests
    tools       The constraints of a request on the cluster's answer: tools to call, allowed or required, and text
                schema
"""
