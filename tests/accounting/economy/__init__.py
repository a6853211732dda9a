"""A small economy on the ledger: all that can happen with money, tried at random and compared with a model."""
