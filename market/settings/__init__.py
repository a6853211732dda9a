"""The settings of those who trade: buyer, seller and marketplace.

Modules:
    buyer        The market lane: whether, from whom and for how much this gateway buys from other people's
                 machines
    marketplace  The marketplace: whether this gateway takes in buyers' credits for sellers, and on what terms
    seller       Settings of selling: the models for sale, the times, and the prices
"""
