"""Who trades: identities that outlive their keys, and what other gateways can check of that alone."""
