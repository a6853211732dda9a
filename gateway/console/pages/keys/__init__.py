"""Keys & users: API keys, users, organizations and limits, and the visitor's own account."""

from gateway.console.pages.keys import account, limits, listing, making, one, organizations, people

router = listing.router
for part in (making, one, limits, people, organizations, account):
    router.include_router(part.router)
