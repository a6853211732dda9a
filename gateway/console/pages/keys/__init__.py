"""Keys & people: who may come in with what, and one's own account."""

from gateway.console.pages.keys import account, limits, listing, making, one, organizations, people

router = listing.router
for part in (making, one, limits, people, organizations, account):
    router.include_router(part.router)
