"""The controller's side: the machines, the deployment, and the repair of a broken pipeline.

Modules:
    answers            The unread messages of the machines, in order
    deployment         One epoch's pipeline, from a plan to a first frame that has passed all stages and come back
    embedder_place     The choice of the machine for the embedding model: a pure function, which also gives its
                       reason
    embedding_manager  The task that keeps an embedding model served: on one machine, and on another if that one is
                       lost
    epochs             Numbers of deployments
    fault_attribution  Fault attribution for a broken pipeline: its machines' reports, and which of them must pause
    links              The controller's survey of links: the schedule of measurements, and their results
    loaded_stages      The layers that the machines' stage processes have loaded, as far as the controller knows
    manager            The one task that owns the deployment: it plans, deploys, and plans again when a machine is
                       lost or joins
    membership         The present members: admitted, watched by heartbeat, forgotten
    model_text         A model's text handling in the controller: how it writes tools and thoughts, and how long
                       prompts are
    next_plan          The choice of the next plan: the broken pipeline with its standbys, or a new pipeline over
                       the fit machines
    owners             The machines that keep a model's first and last layers: their configured names, and the
                       machines behind them
    parts              The controller's answers to one node's fetches: parts of model files, or why there are none
    quarantine         The quarantine of machines that failed a rollout, so that one of them does not keep the
                       others from serving
    readiness          Whether the cluster answers now, and why not
    recovery           The repair of a broken pipeline: the machine at fault, and the standbys that replace it
    request_gate       The gate of one deployment: requests that it answers, requests that wait for it, and when it was
                       last of use
    residency          The task that decides which deployments are loaded: it loads those that are asked for and unloads
                       others for them
    roster             The controller's side of every node's connection: admit it, read it, answer fetches, notice
                       its loss
    specs              What a deployment should be: its model, its name and when it may be unloaded; and the file of
                       those added later
    standbys           Keeps copies of a pipeline's stages loaded on machines outside it, one at a time on each
                       machine
    subscription       One deployment's part of the roster: its orders to machines, their answers, and the machines it
                       may use
    supervisor         The task that keeps a deployment served: it deploys, watches, and deploys again after a loss or a
                       failure
    topology           The state of a cluster at one moment, for display
"""
