"""The postings of each kind of journal entry: pure functions from facts to transfers.

Modules:
    allocations    Book allocations of the market: credits reserved for one seller, from which deliveries are drawn
                   turn by turn
    audits         Book the cost of audits: requests to sellers that no user made
    burst          Define the posting rules of requests to cloud providers: pure functions turn each business event
                   into transfers
    charged        Read what the ledger recorded about one request's charge: the payers and recipients
    corrections    Correct a mistake by an event of its own, because booked events never change
    debts          Book the debts of users and sellers: settled from their credits, or written off
    earnings       Release sellers' earnings: they are held until the time for complaints has passed, and a reserve
                   for longer
    grants         Grant credits to users and pools outside of Stripe, and expire promotional credits
    held           Define what requests have reserved and what they cost: the nouns that the rules use
    invoices       Pay the invoices of cloud providers, and compare them with the costs that we booked per request
    local          Book the work of own machines in compute units, which are never mixed with money
    market         Define the posting rules of requests to sellers' machines: bought, delivered, sold
    moves          Make the single transfer that every rule uses
    parts          Reserve money from several accounts at once, in the order in which they pay
    sales          Book a seller's own income: what its machines sold on the market, and an outside marketplace owes for
    usage_refunds  Refund a request's charge, whole or in part: reverse the recorded legs, the last ones first
    variances      Book what sellers are owed for a request beyond its usage row
"""
