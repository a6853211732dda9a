"""Code shared by buyers, sellers and houses: identity, outbound HTTP, and the exchange of signed records."""
