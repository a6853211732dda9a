"""The agent on each machine: its connection, its children, its files and its measurements.

Modules:
    absences         Local nodes that should run and do not, and why
    child            A child process of a node's agent: the agent starts it, exchanges frames with it and reports
                     its end
    child_processes  A node's orders and the child processes that carry them out: its stage, a coordinator, an
                     embedder
    condition        Conditions that slow a machine down or end its service: battery, radio, heat
    file_fetcher     Fetching of missing model files: from the nearest node that has them, otherwise from the
                     controller
    file_server      A node's file server: other nodes of the cluster fetch model files there, and nothing else
    link_probe       A node's part in measuring links: an echo server, and pings and a burst to other nodes
    local_nodes      Nodes on this machine: started with the gateway, started again when they end, stopped with it
    memory_limits    The most memory that this process may use: the limit of its container or service, if there is
                     one
    node             The agent on each machine: it joins, stays connected to the controller, runs its orders and
                     reports
    node_options     The options of a node, which its agent gets once, at its start
    node_process     A node that another process owns: `python -m cluster.nodes.node_process`, with JSON options on
                     stdin
    pace_probe       The computing speed of this machine, measured by the process that will compute, once, and
                     stored on disk
    probe            A machine's resources: memory, cores, devices
    process          The shared parts of a node's child processes: the frame pipe to the agent, logs, and an end
                     without it
    sources          The choice of nodes to fetch model files from: a pure function of who has files and how far
                     away they are
"""
