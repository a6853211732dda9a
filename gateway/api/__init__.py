"""Routes. A handler reads the request, calls one function and writes the answer.

Modules:
    accounting     /accounting/v1: top-ups, refunds, payouts, credits, usage, and Stripe's webhooks
    admin          /admin: routes for the command line and admins; this module: machines, join tokens, requests
    advice         /admin/advise: recommend where to run a model
    authority      Admin access: the machine's own token allows everything, a user's role and organization limit the
                   rest
    batches        /v1/batches: files of requests, answered within a day on idle capacity
    deployments    /admin/cluster/models: the cluster's models; run, load, stop and remove them
    dialect_route  Further routes of other APIs than OpenAI's, with errors in that API's format
    directory      /admin: keys, users, organizations, limits, the audit log, and a caller's own keys, limits and usage
    edge           Layers of every route other than the hot ones: an id in each answer, a caller, a bounded body
    files          /v1/files: uploads for batches, and the results of batches
    generate       Handler of the hot routes: it turns an exchange into a call and has it answered in the caller's
                   dialect
    health         GET /healthz, /readyz and /metrics, for monitoring
    market         /admin/market: this gateway's sales for its own ledger, and the sellers that it knows
    marketplace    Routes of a marketplace: registration, allocations, disputes, and the relay of sellers without a
                   tunnel
    messages       POST /v1/messages/count_tokens of Anthropic's API
    model_terms    /admin/aliases and /admin/prices: aliases of models, and prices of providers' models
    models         GET /v1/models and /v1/models/{id}: every model of any lane, with its lanes and features
    ollama         Ollama's routes other than chats: models, their features, and the version
    openai_pages   Pages of a list in OpenAI's format
    pauses         /admin/pauses: pause and resume buying on a lane to third parties' machines, or selling
    plain          Routes that are requested every few seconds, which bypass the framework
    pool           /admin/pool: the pool's backends and their states; add, remove, drain and scan
    preemptible    /admin/preemptible-key and /admin/idle: routes for the selling agent beside this gateway
    reference      Every route as a page of documentation: `python -m gateway.api.reference > docs/api.md`
    responses      GET and DELETE /v1/responses/{id}, its input items, and the count of a prompt's tokens
    routes_admin   /admin/route: simulate where a request would go now and why, and show the accuracy of predictions
    token_count    Counts prompt tokens: exactly if the cluster has the model's tokenizer, else with the ledger's
                   estimate
"""
