"""One module for each kind of inference server: how to recognize and query it.

Modules:
    base          The interface of every backend kind to the prober: it queries the backend and reports the answer
    catalogue     Every kind of backend: its display name, its usual port, and its reader
    engines       vLLM (0.6 and later, both engines) and SGLang (0.4 and later): their lists of models and
                  Prometheus gauges
    listed        Servers that publish little more than a list of models, distinguished by what they cannot do
    llama_server  llama-server of llama.cpp, as of b4000 and later: /v1/models, /props, /slots, /metrics
    lm_studio     LM Studio: /api/v0/models (0.3.6 and later), and if that is missing, /api/v1/models (0.4 and
                  later)
    loaded_only   Servers that list more models than they can currently answer with: TabbyAPI and exo
    millrace      Another Millrace: its list of models has each model's lanes, features and context length
    ollama        Ollama, as of its versions 0.6 to 0.12: /api/tags, /api/ps, /api/show and /api/version
"""
