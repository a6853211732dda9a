"""Balance: credits to spend, how they came and went, their limits; for operators also the ledger.

Modules:
    accounts         A user's credits: available, held and pending, in charge order; live
    behind           References of statement lines: the requests that an entry settled, the top-up that a payment
                     was for
    budgets          Budgets: every limit that applies to the visitor, and for admins all that they manage, with
                     the usage
    cost             Usage and cost by day, model and key; for the instance also compared with the cloud
    ledger           The state of the ledger: every rule it keeps, its signed blocks, and a verification on request
    lines            Lines of a statement: debit and credit of each, and the account's balance after it
    manual_credits   Manual entries of operators, each form once: credits given, promotional or returned, goodwill,
                     adjustments
    payments         State of payments for operators: queued or failed webhooks, Stripe against the ledger, frozen
                     users
    statement        The statement: every transfer of an account, both sides, with the balance after it; in pages,
                     and as CSV
    topping_up       Top-ups: chosen with the fee shown, paid on Stripe's page, credited when Stripe confirms the
                     payment
    users           Credits of all users whom the visitor administers, searchable by name; and their
                     organizations' balances
    whose            The owner of the money on a page: the visitor, or for admins a user or organization they
                     manage
"""

from gateway.console.pages.balance import (
    accounts,
    budgets,
    cost,
    ledger,
    manual_credits,
    payments,
    statement,
    topping_up,
    users,
)

router = accounts.router
for part in (topping_up, statement, budgets, cost, users, manual_credits, ledger, payments):
    router.include_router(part.router)
