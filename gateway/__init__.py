"""The gateway: one OpenAI base URL in front of all lanes, the ledger and the pages.

Modules:
    __main__           `python -m gateway`: the millrace command, if its script is not on the PATH
    admin              The service layer: what routes, console pages and commands do, with its rules; one function for
                       each
    advice             Recommend where a model should run: hardware fit, cost and break-even
    api                Routes
    app                The composition root: builds and starts every service, and ends them in order
    app_state          What routes and console pages may take as parameters: FastAPI dependencies on what `gateway.app`
                       built and runs
    batches            Files that callers upload, and batches of requests that are answered on idle capacity
    billing            Book finished requests: settlement, the request log, prices and payments
    cache              The answer cache: stored answers, coalesced requests, and answers to similar questions
    cli                The millrace command: one module for each group of commands
    console            The web console: pages made on the server, kept live by events
    database           Opens the database with its tables up to date; only this module knows the migrations'
                       location
    dialects           The APIs that clients speak
    errors             The gateway's errors, and the table that maps every error of a request to its answer
    http               The socket side of the hot path: requests that bypass the framework
    identity           Callers: keys, users, organizations, sign-in and sessions
    lanes              The lanes that answer requests, and their common parts: events, relay, usage
    limits             Limits of requests, tokens and spend, counted here or in Redis for all gateways
    market_lane        Open the market lane of a gateway that buys: start its buyer process and the jobs that book
                       its costs
    metrics            The gateway's metrics in Prometheus format
    migration_process  Migrates a database's tables, in a separate process that `gateway.upgrade` starts
    own_marketplace    Assemble the marketplace from the settings, over the gateway's own ledger
    pages              Pages of a list: the position where a page ended, and the rows that it shows
    parameters         What routes and console pages share of HTTP: parameters of addresses, and pages as CSV files
    quota              Limits as data: measure, amount, scope and span
    requests           One request from admission to settlement, in eight steps (docs/architecture.md)
    routing            Decide where a request goes: pure functions of policy, measurements and prices
    schema_upgrade     Migrations with Alembic
    serving            Runs a gateway: starts services, sockets and the cluster, handles signals, and stops
                       everything in order
    settings           Reads the environment and the settings file; all other code receives plain values
    storage            Checks whether acknowledged data can be stored: the data directory may be deleted, full or
                       read-only
    telemetry          Telemetry for operators: access log, traces and history
    upgrade            Migrates tables in a separate process that ends
    web                The web application: every route other than hot routes (http.hot) and frequent ones
                       (api.plain)
"""
