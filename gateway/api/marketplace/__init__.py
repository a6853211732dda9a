"""Routes of a market's house: registration, allocations, disputes, and the relay of sellers without a tunnel."""
