"""Policy: the rules as they hold, a request tried out against them, and who changed them."""

from gateway.console.pages.policy import history, rules, simulator

router = rules.router
for part in (simulator, history):
    router.include_router(part.router)
