"""The market's protocol: records, listings, channels, encryption. Pure: no HTTP, sockets or database.

Modules:
    audits    Audit sellers: the evidence of what they run, what it says, and what follows
    channels  Keep what one gateway owes another in records that both sign: mergeable in any order, no centre
              needed
    counting  Count what a request and its answer amount to in tokens, by one rule for buyer, seller and
              marketplace
    identity  Identify who trades: identities that outlive their keys, and what other gateways can check about them
    listings  Describe what sellers offer, when, and at which price
    matching  Choose which of many third parties gets a request: pure, with reasons, and such that lying gains
              nothing
    offers    The buyer's report to the gateway: listings that can be bought now, and why others cannot
    records   Define the signed records that gateways exchange, and which of them count
    sealing   Encrypt bodies so that only the buyer and the seller can read them, and no machine that forwards them
"""
