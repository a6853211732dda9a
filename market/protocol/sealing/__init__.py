"""Encrypt bodies so that only the buyer and the seller can read them, and no machine that forwards them."""
