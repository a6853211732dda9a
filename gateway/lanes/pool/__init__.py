"""The pool lane: inference servers that each have whole models.

Modules:
    announced    Hosts that announce themselves by mDNS, as places to scan
    backend      One backend of the pool: its origin, its last probe's result, and its offers
    gauges       Reads a few gauges by name from Prometheus text
    kinds        One module for each kind of inference server: how to recognize and query it
    lane         The pool lane: whole copies of models behind any OpenAI-compatible server; bytes pass unchanged
    loads        How long a model takes to load: as measured, otherwise estimated from its size
    members      The backends of the pool, from the settings and added later, each with its probe task
    offers       Derives a backend's offers, by every name, from its report and its settings
    probe        Probes one backend repeatedly: interval, timeout, and the meaning of silence
    queries      Queries to a backend: limited in time and bytes, without redirects, with type-checked answers
    recognition  Recognizes the kind of server at an address by answers that only this kind gives
    report       A backend's report about itself, in one format for all kinds
    residence    Asks an Ollama to load or unload a model
    scan         Scans for model servers, only on request and only in permitted networks: a few ports of some hosts
    stored       pool.json in the data directory: backends added and drained while the gateway ran
"""
