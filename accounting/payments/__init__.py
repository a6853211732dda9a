"""Move money in and out through Stripe: top-ups, refunds, disputes, payouts, and a daily comparison with the
books.

Everything here is synchronous and bounded. A process with an event loop calls it in a small pool of threads.
"""
