"""The cluster lane: models whose layers are spread over machines. It knows neither HTTP nor money.

Modules:
    chat_model        One model that answers prompts: its files, its deployment, and the requests of its callers
    client            The client of a coordinator or an embedder: one connection that carries all requests of its
                      callers
    compute           One stage's arithmetic: weights, kernels, layers, KV cache, sampling
    control           The controller's side: the machines, the deployment, and the repair of a broken pipeline
    controller        The control plane: it admits machines, deploys a model over them, and carries requests to it
    embedding         The requests to an embedding model and its answers: one vector for each text
    engine            The code that runs on nodes: the loops of the coordinator and of a stage, and their decisions
                      for each step
    errors            The errors of the cluster, one class per meaning
    events            Recent events of the cluster, for admins: machines that came and went; epochs that began,
                      served and broke
    fleet       The models of the cluster: those of the settings and those that come and go while the gateway runs
    generation        The requests to a model and its answers, token by token
    joining           How a machine finds its cluster and joins it: discovery, enrolment, and the handshake of
                      every connection
    machine           A machine as the cluster sees it: memory, device, measured pace and present condition
    models            Models on disk: files, hashes, shapes, families, tokenizers
    net               Connections between machines: the data plane's blocking links, the control plane's channels
    nodes             The agent on each machine: its connection, its children, its files and its measurements
    plans             The choice of which machine holds which layers, with reasons: pure functions of machines,
                      links and model
    resumption        One request across several coordinators: the answer so far, and the request to the next
                      coordinator
    trust             Identities of machines: keys, the authority that certifies them, and the renewal of
                      certificates
    wire              Every message between machines and processes of a cluster, one file for each pair of speakers
"""
