"""Selling: listing idle capacity, earnings, seller status, and the marketplace's pages for operators.

Modules:
    access            Access to the selling pages, and helpers that pass forms on and show rejections beside their
                      fields
    account           A seller's account at a marketplace, local or remote: its requests and their answers
    accounts          The account where sales are posted: here if this gateway is the marketplace, else at the
                      configured one
    agent             State of the selling agent, and its remedy, from the agent's last report
    agents_settings   The settings that the agent would read if it started now, and the command that starts it
    desks             The marketplace's records about selling: allocations, disputes, and a seller's history
    dispute_data      Data for a dispute's page: what both sides have signed on a sub-channel; and submitting a
                      text
    earnings          Earnings: pending, available, paid out; their dates; the statement; the payout account;
                      payouts
    first_sales       Notices of each listing's first sale, shown on any live page of its seller; browsers show
                      each once
    marketplace             The marketplace for its operators: sellers, allocations and settlements, disputes, reserves
                      and holds
    maturity          When a seller's earnings become available: each day's sales, the reserve, and amounts on hold
    overview          Selling now: the agent's state and its reason, the listings, the sales; pause and resume
    price_suggestion  Suggests a price for a model: below the cloud price, above the power cost
    records           Reads the agent's files while the agent writes them: its listings, its sales, audit findings
    remote            This machine's account at the configured marketplace, read over HTTP as the agent does
    seller_status     Seller status: identities, audits, dispute history; disputes, and opening one
    sellers_here      The sellers of this marketplace: new, suspended or forfeited, with their reserves and holds
    steps             The wizard's questions, step by step, filled in from the settings file
    wares_here        This gateway's sellable models, why others cannot be sold, and their recent speed
    wizard            “List idle capacity”: model, idle conditions, price, connectivity; checked and saved for the
                      agent
"""

from fastapi import APIRouter

from gateway.console.pages.selling import earnings, marketplace, overview, seller_status, wizard

router = APIRouter()
for part in (overview, wizard, earnings, seller_status, marketplace):
    router.include_router(part.router)

__all__ = ["router"]
