"""What a request and its answer amount to in tokens: one rule, which buyer, seller and house all follow."""
