"""Prices of the lanes, and what your machines' tokens cost.

Modules:
    factory  Opens the parts that counting and charging need: tokenizers, and recorded prices
    rates    The current cost of a second of own machines: recorded when it changes, and measured if power can be
             read
"""
