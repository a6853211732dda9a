"""Where a request can be answered, and what all lanes share: events, relay, usage.

Modules:
    aliases         Further names of a lane's models, as the owner sets them
    allowance       How much of an answer is paid for before it is there: all of it, or ever more of it as it comes
    base            The interface of every lane to the journey: models on offer, and a call that becomes an answer
    body            The bytes of an answer on their way to the caller: the sink, and the body that writes to it
    body_rewriter   A caller's body as a backend should have it: single fields exchanged, every other byte as it
                    came
    bounded_body    The caller's body for a paid backend: limited to the reserved amount, and with a request for
                    usage
    choice          Reads the text of a choice, from one event or a whole answer
    cloud           The cloud lane: providers, through a worker process that alone imports litellm
    cluster         The cluster lane: one model's layers over several machines
    depth           How deep a request's own objects go: what is nested too deep can be neither sent on nor written
                    out
    embeddings      Embeddings of the cluster lane: what is on offer, and vectors as the OpenAI API writes them
    events          Reads an answer as it passes, with as little parsing as possible: whether it is whole, and its
                    usage
    features        The features that a request needs beyond text in and text out, and the fields that request them
    folding         A chat whose messages a backend's chat template refused, in the plainer shapes that it may take
    json_body       Reading an answer that comes as one JSON object
    market          The market lane: other people's machines, bought through the buyer's process
    pool            The pool lane: inference servers that each have whole models
    preemptible     Preemptible requests: jobs from the market on capacity that this gateway does not need
    refusals        Interprets a backend's error: which side caused it, and whether another backend may do better
    relay           Passing an OpenAI-compatible upstream's answer on, byte for byte, while reading what it used
    resume_records  Events of a resumable stream that state, before its chunks, the tokens that the chunks
                    represent
    tables          Model settings that operators made at run time: aliases, and prices of providers' models
    tee             Keeps the forwarded bytes of a free stream, in case its backend reports no usage
    token_bounds    The most tokens that a paid request may come to: its prompt, its choices and each of their
                    answers
    tokens          Counts and estimates of tokens, from upstreams' reports, or from texts if there is no report
    transcript      Assembles an answer's text from its bytes as they pass: streamed or whole, in OpenAI's format
    upstream        A backend from a call's view: its address, its headers, and its timeouts
    usage           The measured usage of an answer
"""
