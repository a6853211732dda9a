"""Move money in and out through Stripe: top-ups, refunds, disputes, payouts, and a daily comparison with the
ledger.

Everything here is synchronous and bounded. A process with an event loop calls it in a small pool of threads.

Modules:
    auto            Decide when to buy credits automatically with a saved method: below a threshold, within limits
    calls           Make calls that change something at Stripe: store each with its key, make it, and store its
                    answer, once
    chores          Run the periodic jobs of payments: one of several gateways does each at a time, and all know
                    the result
    client          Wrap Stripe's API in three verbs: create, retrieve, list
    context         Hold what every part of payments works with, made once and passed to each
    disputes        Handle disputes: a bank takes a payment back, the user is frozen, and the outcome is booked
    errors          Errors between the ledger and Stripe
    fresh           Keep fresh credits with their buyer: a bank may still take back a recent card payment
    frozen          Know the frozen users, who may not spend until an admin has examined their payments, at hand
                    for every request
    inbox           Receive webhooks: verify each, store it under its event's id, and answer
    keeper          Run the thread of payments: the inbox every few seconds, reconciliation with Stripe and payouts
                    daily
    ledger          Give payments access to the ledger: book an event and wait, check whether it is booked, read
                    balances
    mode            Keep test money and real money in separate ledgers: payments of Stripe's test mode never mix with
                    live ones
    pages           List top-ups, refunds and payouts: newest first, a page at a time
    payers          Manage users as payers: their customer at Stripe, their automatic top-ups, and whether they are
                    frozen
    payments        Assemble all of payments: what the gateway holds, and what it runs periodically
    payouts         Pay sellers in two steps: a transfer to their account at Stripe, then a payout from there to
                    the bank
    progress        Define the progress of payments: a status has a rank, and in any order of messages the rank
                    never falls
    reconciliation  Compare daily every balance transaction at Stripe with what the ledger has about the same
                    subject
    refunds         Refund top-ups: reserve the credits, then ask Stripe
    resumption      Resume stalled rows one after the other
    rows            Create rows that several requests may want at the same moment: one creates it, and all use that
                    row
    rules           Define the posting rules of payments: pure functions that turn each of Stripe's actions into an
                    event
    sellers         Manage sellers at Stripe: onboarding on Stripe's pages, and whether money may go to their
                    account
    status_report   Report the state of payments: waiting and failed messages, frozen users, and the last
                    reconciliation
    tables          Define the tables of payments: requests to Stripe, its messages, and the progress of each
                    payment
    terms           Define what the marketplace offers: amounts, fees and payout rules
    topups          Sell credits by a page of Stripe's or a saved method, and book them when Stripe says that they
                    are paid
    worker          Handle the inbox: one event at a time, each by its handler, with retries
"""
