"""Routes. A handler reads the request, calls one function and writes the answer.

Modules:
    accounting     /accounting/v1: credits bought and given back, earnings paid out, and what Stripe tells
    admin          /admin: what the command line and admins ask of a running gateway; here: machines, join tokens,
                   requests
    advice         /admin/advise and /admin/cluster/model: where a model should run; and having the cluster serve
                   it
    audit          GET /admin/audit: who did what, newest first, a page at a time
    authority      Admin access: the machine's own token may do everything, a user what role and organization allow
    batches        /v1/batches: requests by the file, answered within a day on what is idle
    catalogue      Every model of any lane with its known properties, for the APIs that list models
    delegation     Limits on keys that an admin of one organization makes: never more than their own key allows
    dialect_route  Routes beside the hot ones that belong to another API: their errors are in its words, too
    edge           Layers of every route other than the hot ones: an id in each answer, a caller, a bounded body
    fields         Fields that bodies and queries of the admin API are made of, bounded and free of what no
                   database takes
    files          /v1/files: uploads for batches, and the results of batches
    generate       Handler of the hot routes: it turns an exchange into a call and has it answered in the caller's
                   dialect
    health         GET /healthz, /readyz and /metrics, for monitoring
    idle           This gateway's idle state, for the selling agent: the state itself, and waiting until it changes
    join_command   What is typed on a machine that is to join: the command with the address at which it finds the
                   cluster
    keys           /admin/keys: keys made, changed, rotated and revoked over HTTP
    marketplace    Routes of a marketplace: registration, allocations, disputes, and the relay of sellers without a
                   tunnel
    me             /admin/me: what everybody with a key may see of themselves
    messages       POST /v1/messages/count_tokens, as Anthropic has it
    model_terms    /admin/aliases and /admin/prices: further names of models, and prices of providers' models
    models         GET /v1/models and /v1/models/{id}: every model that some lane has, with its lanes and what it
                   can do
    ollama         What Ollama's clients ask beside chats: which models there are, what they can, which version
                   this is
    openai_pages   Pages of a list as OpenAI's clients walk through them
    pauses         /admin/pauses: buying on a lane to other people's machines, or selling, stopped until it is
                   resumed
    plain          The routes that are asked every few seconds for as long as a gateway runs: they need no
                   framework
    pool           /admin/pool: who is in the pool and how they are; taken in, taken out, left alone, looked for
    preemptible    /admin/preemptible-key and /admin/idle: what the selling agent beside this gateway asks of it
    quotas         /admin/quotas: limits of keys, users, teams and organizations
    reference      Every route as a page of documentation: `python -m gateway.api.reference > docs/api.md`
    responses      GET and DELETE /v1/responses/{id}, its input items, and the count of a prompt's tokens
    routes_admin   /admin/route: where a request would go just now and why, without sending it; how good
                   predictions have been
    sales          /admin/market/sales: what own machines sold on the market, for this gateway's own ledger
    sellers        /admin/market/sellers: who sells to this gateway, what is known of them, and who is not bought
                   from
    token_count    Counts prompt tokens: exactly if the cluster has the model's tokenizer, else with the ledger's
                   estimate
    users         /admin/organizations and /admin/users: who is there and what each may do
"""
