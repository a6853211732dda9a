"""Policy: the rules in force, a routing simulator, and the history of changes.

Modules:
    history         The audit log: who changed what, newest first, with old and new values
    rules           Policy in force: lane access, third-party processing, spending limits, and the settings that
                    restrict requests
    simulator       Routing simulator: where a request would go now and why, by the live router; nothing is sent or
                    charged
"""

from gateway.console.pages.policy import history, rules, simulator

router = rules.router
for part in (simulator, history):
    router.include_router(part.router)
