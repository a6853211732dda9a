"""Keys & users: API keys, users, organizations and limits, and the visitor's own account."""

from gateway.console.pages.keys import account, creation, key_list, limits, one, organizations, people

router = key_list.router
for part in (creation, one, limits, people, organizations, account):
    router.include_router(part.router)
