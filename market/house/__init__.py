"""The house: where buyers' credits are put aside for sellers, and what both have signed becomes money."""
