"""The lanes that answer requests, and their common parts: events, relay, usage.

Modules:
    aliases         Aliases of a lane's models, set by the owner
    allowance       How much of an answer is reserved in advance: all of it, or growing amounts while it streams
    base            The interface of every lane: its offers, and opening an answer to a call
    body            The bytes of an answer on their way to the caller: the sink, and the body that writes to it
    body_rewriter   Rewrites a caller's body for a backend: replaces single fields and keeps every other byte
    bounded_body    The caller's body for a paid backend: limited to the reserved amount, and with a request for
                    usage
    choice          Reads the text of a choice, from one event or a whole answer
    cloud           The cloud lane: providers, through a worker process that alone imports litellm
    cluster         The cluster lane: one model's layers over several machines
    embeddings      Embeddings of the cluster lane: its offer, and vectors in OpenAI's format
    events          Reads a passing answer with as little parsing as possible: whether it is complete, and its
                    usage
    features        The features that a request needs beyond text in and text out, and the fields that request them
    json_body       Reads an answer that is one JSON object
    market          The market lane: third parties' machines, bought through the buyer process
    pool            The pool lane: inference servers that each have whole models
    preemptible     Preemptible requests: jobs from the market on capacity that this gateway does not need
    refusals        Interprets a backend's error: which side caused it, and whether another backend may do better
    relay           Forwards an OpenAI-compatible upstream's answer byte for byte, and reads its usage meanwhile
    resume_records  Events of a resumable stream that state, before its chunks, the tokens that the chunks
                    represent
    tables          Model settings that operators made at run time: aliases, and prices of providers' models
    tee             Keeps the forwarded bytes of a free stream, in case its backend reports no usage
    token_bounds    The maximum number of tokens of a paid request: prompt, choices and each choice's answer
    transcript      Assembles an answer's text from its bytes as they pass: streamed or whole, in OpenAI's format
    upstream        A backend from a call's view: its address, its headers, and its timeouts
    usage           The measured usage of an answer
"""
