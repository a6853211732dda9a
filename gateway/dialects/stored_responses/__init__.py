"""Responses that their callers asked us to keep.

Modules:
    pruner  What is too old or too much goes, in small portions: on SQLite the ledger waits for each
    store   Stores responses for a limited time: available at once, written to the database by a background thread
    tables  Stored responses, one row each; a conversation is a chain of them
"""
