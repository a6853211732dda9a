"""What a gateway costs on top of its upstream: ours and its peers before one mock upstream, in one run."""
