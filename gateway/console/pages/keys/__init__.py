"""Keys & users: API keys, users, organizations and limits, and the visitor's own account.

Modules:
    account          Your account: your identity, your password, and your sessions
    fields           Fields of the forms about keys, users and limits; the service layer's own requests check the rest
    figures          Figures of keys and limits: a key's last use, and the usage of a limit
    key_list         Keys: their owners, usage this month, and usage of their limits; in pages, and live
    limits           Limits of keys, users, teams and organizations: set and removed
    one              One key: creating it, with its secret shown once; its permissions and usage; changing, rotating
                     and revoking it
    organizations    Organizations: groups of users that share limits; and the settings of single sign-on
    users           Users: a list with their ways to sign in; adding, changing roles, password links, removing
"""

from gateway.console.pages.keys import account, key_list, limits, one, organizations, users

router = key_list.router
for part in (one, limits, users, organizations, account):
    router.include_router(part.router)
