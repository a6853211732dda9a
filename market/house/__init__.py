"""Run the house: it reserves buyers' credits for sellers, and turns what both have signed into money."""
