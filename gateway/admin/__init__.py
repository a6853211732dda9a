"""The service layer: what routes, console pages and commands do, with its rules; one function for each.

Modules:
    authority             Who acts, and on what: the machine's own token may do everything, a user's role and
                          organization limit the rest
    balance               A user's available and reserved credits, and their debt; an organization's balance
    catalogue             Every model of any lane with its known properties, for the APIs that list models
    cluster_model         Recommends where a model should run; runs, loads, stops, replaces and removes the cluster's
                          models
    credit                Credits: given by instance admins, and moved between users and their organization's balance
    fields                Field types of requests and forms, limited to values that databases accept
    idle                  This gateway's idle state, for the selling agent: the state itself, and waiting until it
                          changes
    join_command          The command for a joining machine, with the cluster's address
    keys                  API keys: create, change, rotate, list and revoke them
    ledger_access         The ledger with the party that acts on it: in a running gateway, or in a command beside it
    ledger_checks         Verifies that the ledger matches its signed blocks, adds up and keeps its rules; accepts
                          violations of these
    limits                Limits of keys, users, teams and organizations; limits on money are their budgets
    machines              The cluster's machines: join tokens; drain, remove and rename a machine; preview a plan
    manual_entries        Journal entries that operators make by hand, each once for its id: goodwill, adjustments,
                          write-offs, invoices
    marketplace           A marketplace: allocations of credits, what a seller earned, suspension and forfeiture, texts
                          for a dispute
    marketplace_requests  Requests to the marketplace
    model_terms           Aliases of models, and prices of cloud models, that operators set at run time
    payments              Payments: top-ups, refunds and payouts, and what operators do about them
    pool                  The pool's backends: add, remove, drain and scan
    prices                The versions of every price, and charges that differ from them; beside a running gateway or
                          without one
    route_trial           Simulates where a request would go now, and why
    selling               What the owner of this gateway sells: models, idle hours, prices and connectivity, in
                          `[selling]` of millrace.toml
    settings_file         Reads and replaces the section `[selling]` of millrace.toml without touching the rest of the
                          file
    statement             Statements: the newest transfers of several accounts together
    troubles              Problems that an operator must fix: of the data directory, and of the cloud's keys and worker
    usage                 Requests and their cost, in groups: what a caller may see of them
    usage_refunds         Refund a request's charge to its payer, completely or in part
    users                 Organizations and users: list, add, change and remove them
"""
