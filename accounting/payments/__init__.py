"""Money in and out through Stripe: top-ups, refunds, disputes, payouts, and their daily comparison with the books.

Everything here is synchronous and bounded; whoever serves an event loop calls it in a small pool of threads.
"""
