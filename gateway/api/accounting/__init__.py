"""/accounting/v1: credits bought and given back, earnings paid out, and what Stripe tells.

Modules:
    balance               /accounting/v1/balance: what a user may spend, the part of it that is reserved, and what
                          they owe
    budgets               /accounting/v1/budgets: what keys, users, teams and organizations may spend in a day or
                          a month
    credit                /accounting/v1/credits: granted by instance admins, and moved by users to their
                          organization's balance
    dependencies          Dependencies of the accounting API: the caller, the user or scope of a request, and its
                          idempotency key
    keyed                 Routes that run once for each Idempotency-Key: every POST and PUT of the accounting API
    ledger                /accounting/v1/ledger: is the ledger what it was when it was signed, and does it add up?
                          For operators
    payment_dependencies  Dependencies of payment routes: the payments service, and the check whether a caller may
                          see an object
    payouts               /accounting/v1/sellers and payouts: who sells says where they are paid, and asks for what
                          they have earned
    reconciliation        /accounting/v1/payments: how payments are, Stripe against the ledger, and who is frozen
    refunds               /accounting/v1/refunds: bought credits go back to the card that they came from
    routes                Which routes of /accounting/v1 there are: those of payments only where the owner has set
                          up Stripe
    topups                /accounting/v1/topups: credits for money
    transactions          /accounting/v1/transactions: credits and debits of a user's accounts, newest first
    usage                 /accounting/v1/usage: what was asked and what it cost, in groups, as JSON or CSV
    usage_refunds         /accounting/v1/refunds/usage: what a request was charged is given back to who paid it,
                          whole or in part
    webhooks              /accounting/v1/webhooks: where Stripe tells what happened
"""
