"""What pages that are looked at take from the gateway's hot path."""
