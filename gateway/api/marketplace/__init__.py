"""Routes of a marketplace: registration, allocations, disputes, and the relay of sellers without a tunnel.

Modules:
    disputes       /market/v1/disputes: both sides submit the delivered text, or show the prompt, and the marketplace
                   counts it
    relay          The relay for sellers without a tunnel: the marketplace holds a buyer's request until the seller
                   fetches it
    relay_factory  The relay of a marketplace: for sellers registered there, with the keys that it knows of them
    routes         /market/v1 at a marketplace: its terms, allocations, settlements
    sellers        /market/v1/sellers: which identities sell for an account, what they earned, and when it is
                   available
"""
