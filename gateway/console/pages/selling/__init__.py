"""Selling: listing idle capacity, earnings, seller status, and the marketplace's pages for operators.

Modules:
    access            Access to the selling pages; the settings that the agent would read if it started now
    accounts          The account where sales are posted: here if this gateway is the marketplace, else at the
                      configured one
    agent             State of the selling agent, and its remedy, from the agent's last report
    desks             The marketplace's records about selling: allocations, disputes, a seller's history;
                      submitting a text
    earnings          Earnings: pending, available, paid out; their dates; the statement; the payout account;
                      payouts
    first_sales       Notices of each listing's first sale, shown on any live page of its seller; browsers show
                      each once
    marketplace       The marketplace for its operators: sellers, allocations and settlements, disputes, reserves
                      and holds
    maturity          When a seller's earnings become available: each day's sales, the reserve, and amounts on hold
    overview          Selling now: the agent's state and its reason, the listings, the sales; pause and resume
    records           Reads the agent's files while the agent writes them: its listings, its sales, audit findings
    seller_status     Seller status: identities, audits, dispute history; disputes, and opening one
    sellers_here      The sellers of this marketplace: new, suspended or forfeited, with their reserves and holds
    steps             The wizard's questions, step by step, filled in from the settings file
    wares_here        This gateway's sellable models, why others cannot be sold, their recent speed, and a suggested
                      price
    wizard            “List idle capacity”: model, idle conditions, price, connectivity; checked and saved for the
                      agent
"""

from fastapi import APIRouter

from gateway.console.pages.selling import earnings, marketplace, overview, seller_status, wizard

router = APIRouter()
for part in (overview, wizard, earnings, seller_status, marketplace):
    router.include_router(part.router)

__all__ = ["router"]
