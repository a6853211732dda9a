"""Balance: credits to spend, how they came and went, their limits; for operators also the ledger."""

from gateway.console.pages.balance import (
    accounts,
    books,
    budgets,
    by_hand,
    cost,
    manual_credits,
    payments,
    people,
    statement,
    topping_up,
)

router = accounts.router
for part in (topping_up, statement, budgets, cost, people, manual_credits, by_hand, books, payments):
    router.include_router(part.router)
