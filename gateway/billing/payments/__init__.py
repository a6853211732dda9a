"""Payments as a part of the gateway; imported only if Stripe is configured.

Modules:
    factory           Payments put together from the settings, running beside the ledger until the gateway ends
    payments_service  Payments as routes ask them: in a few threads of their own, with what goes wrong in the API's
                      terms
"""
