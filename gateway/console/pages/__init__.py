"""Lists every page of the console, one module or package each."""

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
