"""The service layer: what routes, console pages and commands do, with its rules; one function for each.

Modules:
    authority   Who acts, and on what: the machine's own token may do everything, a user's role and organization limit
                the rest
    fields      Field types of requests and forms, limited to values that databases accept
    keys        API keys: create, change, rotate, list and revoke them
    limits      Limits of keys, users, teams and organizations; limits on money are their budgets
    parameters  What routes and console pages share of HTTP: parameters of addresses
    users       Organizations and users: list, add, change and remove them
"""
