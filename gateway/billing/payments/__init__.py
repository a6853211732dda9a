"""Payments as a part of the gateway; imported only if Stripe is configured."""
