"""Lists every page of the console, one module or package each.

Modules:
    balance     Balance: credits to spend, how they came and went, their limits; for operators also the ledger
    cluster     Cluster: the machines that hold one model together, for instance admins
    keys        Keys & users: API keys, users, organizations and limits, and the visitor's own account
    models      Models: where they run, hardware fit of further ones, and the servers that serve them
    overview    Overview: current activity, the last thirty days, and alerts
    playground  Playground: talk to a model as any client does, and see where each answer came from and what it
                cost
    policy      Policy: the rules in force, a routing simulator, and the history of changes
    requests    Requests: the request log with routing decisions
    selling     Selling: listing idle capacity, earnings, seller status, and the marketplace's pages for operators
"""

from gateway.console.pages import balance, cluster, keys, models, overview, playground, policy, requests, selling

ROUTERS = (
    overview.router,
    playground.router,
    requests.router,
    cluster.router,
    models.router,
    keys.router,
    policy.router,
    selling.router,
    balance.router,
)
