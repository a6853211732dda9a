"""Count what a request and its answer amount to in tokens, by one rule for buyer, seller and house."""
