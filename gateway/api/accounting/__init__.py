"""/accounting/v1: credits bought and given back, earnings paid out, and what Stripe tells."""
