"""Payments as a part of the gateway; imported only if Stripe is configured.

Modules:
    factory           Assembles payments from the settings; they run beside the ledger until the gateway ends
    payments_service  Payments for routes: calls run in separate threads, and errors become the API's
"""
