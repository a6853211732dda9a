"""Describe what sellers offer, when, and at which price.

Modules:
    endpoint  Check which addresses a listing may name: only public names over TLS, so that no buyer calls its own
              network
    hours     Decide when a seller sells: weekly windows in its own time, an offset from UTC that needs no time
              zone table
    idle      Decide when a seller's machines are idle enough to be sold, by its own rules and the machines' state
    listing   Define a listing: one model that one seller offers, in a record that it signs again at least every
              ten minutes
    prices    Define a listing's prices, and what an answer costs by them
"""
