"""Stored responses of the Responses API.

Modules:
    pruner  Deletes old and excess responses in small portions, because on SQLite the ledger waits for each
    store   Stores responses for a limited time: available at once, written to the database by a background thread
    tables  Stored responses, one row each; a conversation is a chain of them
"""
