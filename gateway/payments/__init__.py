"""Payments as a part of the gateway; imported only where its owner has set up Stripe."""
