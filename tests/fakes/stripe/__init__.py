"""Stripe as far as Millrace talks to it: a real HTTP server with Stripe's idempotency, webhooks and failures."""
