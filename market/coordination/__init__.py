"""What several gateways agree on while any of them may fail: who does a chore, who is there, what is void."""
