"""A small economy on the books: all that can happen with money, tried at random and held against a model."""
