"""Money: a double-entry ledger, what is reserved and charged, and payments. It knows no HTTP.

Modules:
    chart        Define the chart of accounts: which codes exist, and what an account of each kind is
    errors       Errors of the ledger, one class per meaning
    ledger       The ledger itself: journal entries, balances and the one writer
    metering     Meter usage: token counts, prices and their versions, and the cost of your machines
    money        Represent money as integers: nano-USD, token prices, and one rounding per request
    payments     Move money in and out through Stripe: top-ups, refunds, disputes, payouts, and a daily comparison
                 with the ledger
    proofs       Prove the ledger: signed blocks over journal entries, and their verification
    replication  Share one ledger between gateways: the leader writes, the others ask it
    rules        The postings of each kind of journal entry: pure functions from facts to transfers
    spending     Reserve and charge credits: funding sources, holds and spending reservations
    tables       Define the tables of the ledger: accounts with their running totals, events, transfers, usage and
                 credit grants
"""
