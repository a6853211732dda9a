"""The market lane: other people's machines, bought through the buyer's process.

Modules:
    draw  The order in which the sellers of a model are asked, drawn by matching's weights
    lane  The market lane: other people's idle machines, bought from by the buyer's process over its unix socket
"""
