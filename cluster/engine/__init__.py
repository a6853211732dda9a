"""The code that runs on nodes: the loops of the coordinator and of a stage, and their decisions for each step.

Modules:
    actor                The life of an actor's process: a thread computes, the event loop serves callers, the
                         agent's pipe ends it
    completion           One continuation from tokens to text: it detokenizes and ends at an end token, a stop
                         string or a limit
    coordinator          The coordinator's loop: schedule, send, commit tokens, tell callers; from one pipeline to
                         the next
    coordinator_process  The coordinator's process: `python -m cluster.engine.coordinator_process`, started by a
                         node
    costs                The cost of a step on each stage of a pipeline, learned while it runs, and what follows
                         from it for batching
    embedder_process     The process of an embedding model: `python -m cluster.engine.embedder_process`, started by
                         a node's agent
    embedding_queue      Waiting requests for embeddings, and the choice of the texts that are computed together
                         next
    embedding_table      The actor of an embedder: it loads the assigned model and computes the waiting texts,
                         pass by pass
    pipeline_links       A process's place in the pipeline: the one link it accepts from upstream and the one it
                         writes downstream
    prefixes             The slots by the prompt prefixes that they hold, and the slots kept for later prompts with
                         the same prefix
    reception            An actor's side of its callers: their connections, their requests and the answers to them
    request_table        The table of every request that a coordinator holds, from its ticket to its last event
    running_pipeline     One epoch's pipeline as its coordinator sees it: the steps under way, and whether an
                         answer is late
    saved_prefixes       The prefixes that the stages have on disk, as the coordinator knows them, and its orders about
                         them
    scheduler            Continuous batching: which rows of which sequences go into the next micro-batch
    sealing              The part of a step that only the coordinator and the last stage may read, though it passes
                         through every stage
    seeds                The seeds of sampling: one for each request, and one derived from it for each choice
    sequence             One continuation of one prompt, as the scheduler stores it
    slots                The owners of slots and blocks of the KV cache, and the orders about them to the stages,
                         in order
    speculation          Prompt-lookup drafts: the tokens that followed last time, verified by the model in one
                         pass
    stage                One stage's actor: it is assigned layers, takes steps from upstream and sends the results
                         downstream
    stage_process        The process that computes one stage: `python -m cluster.engine.stage_process`, started by
                         a node's agent
    tickets              Requests as a coordinator stores them: their preparation, their checks, and their state while
                         they wait or run
"""
