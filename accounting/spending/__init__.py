"""Reserve and charge credits: funding sources, holds and spending reservations.

Modules:
    allocations      Read how far an allocation of the market is drawn, from the ledger alone
    charges          Read back what the ledger recorded of a request's charge, for a refund
    credit_grants    Manage credit grants: promotional credits, granted once, with an expiry
    earned           Read what a seller has earned, sale by sale, from the ledger alone
    funding          Decide which accounts pay for a caller, in their order, and how much of each a lease's next
                     event may use
    funding_sources  Look up which accounts pay for a caller
    holds            Reserve money before a cloud request, then capture or release it, in time or late
    lease            Hold one payer's lease: credits reserved once for many requests, which take parts without
                     asking the ledger
    lease_renewal    Represent one event of a lease in the making, and its waiters: requests that draw, ended
                     requests to book
    lease_renewer    Book the leases' events: read the balances to draw from, wait for the ledger, and handle
                     denials
    leases           Manage the leases of one process: requests reserve in memory, and one thread draws, books and
                     renews
    reaper           Release what dead requests had reserved (crashed gateways, lost machines, bugs), and expire
                     credit grants
"""
