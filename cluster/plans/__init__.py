"""The choice of which machine holds which layers, with reasons: pure functions of machines, links and model.

Modules:
    candidates        The search's view of a fleet: machines, links and a model as numbers for steps of one size
    choice            The best pipeline for a task: its number of stages and steps in flight, its machines and its
                      boundaries
    evictions         The choice of the deployments to unload so that another one fits: a pure function, which also
                      gives its reason
    exact_partitions  The best pipeline out of a dozen machines, proven: dynamic programming over sets of machines
    forecast          The expected times of a pipeline, in seconds, before it exists: a step's time on each machine
                      and each link
    machine_warnings  Problems of a machine or its links that show before anything fails, each with its remedy
    memory_division   The division of the machines' memory between deployments: a pure function, which also gives its
                      reason
    needs             The memory that a stage needs: weights, KV cache, rows kept for a later neighbour,
                      activations
    network           The links between machines: the delay of a byte, and the bytes per second
    partition_search  A good pipeline out of many machines: grow one from the best seeds, then improve it move by
                      move
    partitions        The best partition of a model's layers over machines in a given order, and the cost of a
                      pipeline
    plan              The choice of which machine holds which layers, and why: a pure function of machines, links
                      and model card
    plan_changes      A comparison of two plans: whether the new one justifies a new pipeline, and what it would
                      change, in words
    plan_reasons      A plan's reasons in words: its layer placement, its gain, and the machines left out, each
                      with two figures
    planned           A plan as data: the machines that take part, the layers of each stage, and the expected speed
    replicas          The standbys: machines outside the pipeline that also hold a stage, so that losing one costs
                      no loading
    speeds            A machine's computing speed: seconds for a layer, measured if possible, otherwise assumed
"""
