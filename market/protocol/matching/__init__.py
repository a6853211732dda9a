"""Choose which of many third parties gets a request: pure, and such that lying gains nothing.

Modules:
    breaker    Leave out sellers that do far worse than their peers now
    candidate  Represent the facts about a seller's listing and a request that matching needs
    caps       Learn how many concurrent requests a seller really takes from its 429s, up to its stated maximum
    choice     Choose a seller: the less busy of two weighted draws, and now and then a random one, to learn
    track      Keep a seller's track record, and bound its quality from below, given how little may be known
    weights    Compute how much of the traffic each candidate should get
"""
