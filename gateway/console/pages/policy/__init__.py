"""Policy: the rules in force, a routing simulator, and the history of changes."""

from gateway.console.pages.policy import history, rules, simulator

router = rules.router
for part in (simulator, history):
    router.include_router(part.router)
