"""What one gateway owes another, in records that both sign: mergeable in any order, settled without a centre."""
