"""The gateway: one OpenAI base URL in front of all lanes, the ledger and the pages.

Modules:
    __main__           `python -m gateway`: the millrace command, if its script is not on the PATH
    advice             Recommend where a model should run: hardware fit, cost and break-even
    api                Routes
    app                The composition root: every service built and started, everything ended in order
    batches            Files that callers upload, and batches of requests that are answered on idle capacity
    billing            Book finished requests: settlement, the request log, prices and payments
    cache              Answers that are given again: stored, coalesced and found by meaning
    cli                The millrace command: one module for each group of commands
    console            The web console: pages made on the server, kept live by events
    coordination       What several gateways agree on: leadership and membership, over the database or etcd
    database           The database with its tables up to date: the only module that knows where the migrations are
    dialects           The APIs that clients speak
    errors             What the gateway refuses, and the table from every error that may end a request to its
                       answer
    http               The socket side of the hot path: requests that never enter the framework
    identity           Who asks: keys, users, organizations, sign-in and sessions
    lanes              The lanes that answer requests, and their common parts: events, relay, usage
    limits             Limits of requests, tokens and spend, counted here or in Redis for all gateways
    market_lane        Open the market lane of a gateway that buys: start its buyer process and the jobs that book
                       its costs
    metrics            The gateway's metrics in Prometheus format
    migration_process  Bring a database's tables up to date, in a process of its own that `gateway.upgrade` starts
    own_marketplace    Assemble the marketplace from the settings, over the gateway's own ledger
    pages              Pages of a list: the position where a page ended, and the rows that it shows
    quota              Limits as data: how much of what, for whom, in which span
    requests           One request from admission to settlement, in eight steps (docs/architecture.md)
    routing            Decide where a request goes: pure functions of policy, measurements and prices
    schema_upgrade     Uses Alembic
    services           Objects that live as long as the process, built once and passed to the modules that need
                       them
    serving            A gateway's life: services up, sockets open, cluster deployed, signals obeyed, everything
                       down again
    settings           The one reader of environment and settings file; everything else receives plain values
    storage            Whether what this gateway acknowledges can be kept: its data folder may be deleted, full or
                       read-only
    telemetry          What operators see: access log, traces and history
    upgrade            Tables brought up to date by a process that ends
    web                The web face: every route but those that carry the traffic (http.hot) or are asked all the
                       time (api.plain)
"""
