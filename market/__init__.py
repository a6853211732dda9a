"""The market: capacity of other people's machines, listed, found, paid, sealed. Knows accounting, no HTTP."""
