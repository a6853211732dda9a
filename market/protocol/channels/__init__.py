"""Keep what one gateway owes another in records that both sign: mergeable in any order, no centre needed."""
