"""The order in which requests wait for a free slot.

Modules:
    order  The order of waiting requests: priority bands, fairness between keys, deadlines within a key
    turns  Wait for a free slot of a backend: in a fair order, with limits on time and number
"""
