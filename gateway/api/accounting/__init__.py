"""/accounting/v1: top-ups, refunds, payouts, credits, usage, and Stripe's webhooks.

Modules:
    balance         /accounting/v1/balance: a user's available and reserved credits, and their debt
    budgets         /accounting/v1/budgets: daily and monthly spending limits of keys, users, teams and organizations
    credit          /accounting/v1/credits: granted by instance admins, and moved by users to their organization's
                    balance
    dependencies    Dependencies of the accounting API: the caller, the idempotency key, the payments, and a page of
                    them
    keyed           Routes that run once for each Idempotency-Key: every POST and PUT of the accounting API
    ledger          /accounting/v1/ledger: verifies that the ledger matches its signed blocks and adds up
    payouts         /accounting/v1/sellers and payouts: sellers set up their payout account and request payouts
    reconciliation  /accounting/v1/payments: state, reconciliation with Stripe, and frozen users
    refunds         /accounting/v1/refunds: return bought credits to the card that paid for them
    routes          The routes of /accounting/v1
    topups          /accounting/v1/topups: buy credits
    transactions    /accounting/v1/transactions: credits and debits of a user's accounts, newest first
    usage           /accounting/v1/usage: requests and their cost, in groups, as JSON or CSV
    usage_refunds   /accounting/v1/refunds/usage: refund a request's charge to its payer, completely or in part
    webhooks        /accounting/v1/webhooks: Stripe's notifications
"""
