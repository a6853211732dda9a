"""The market lane: third parties' machines, bought through the buyer process.

Modules:
    draw  Draws the order in which the sellers of a model are asked, by matching's weights
    lane  The market lane: buys from third parties' idle machines through the buyer process's unix socket
"""
