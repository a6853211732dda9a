"""The pool lane: inference servers that each have whole models.

Modules:
    announced    Hosts that announce themselves by mDNS, as places to scan
    backend      One backend of the pool: who set it up, what its last probe found, what it offers
    gauges       Prometheus text, of which we want a few gauges by name
    kinds        One module for each kind of inference server: how it is recognised and asked
    lane         The pool lane: whole copies of models behind any OpenAI-compatible server; bytes pass unchanged
    loads        How long a model takes to load: what was seen, else what its size says
    members      The backends of the pool: those of the settings and those added since, each with its probe task
    offers       From what a backend said and what its owner set to what it offers, by every name that callers may
                 use
    probe        Asking one backend again and again: how often, how long, and what its silence means
    queries      Questions to a backend: bounded in time and bytes, never redirected, answers typed before anybody
                 reads them
    recognition  Which kind of server answers at an address, by what only that kind says
    report       A backend's report about itself, in one format for all kinds
    residence    Asks an Ollama to load or unload a model
    scan         Scans for model servers, only on request and only in permitted networks: a few ports of some hosts
    stored       pool.json in the data folder: backends added and drained while the gateway ran
"""
