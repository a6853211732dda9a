"""What buyers, sellers and houses share: identity, outbound HTTP, and the exchange of signed records."""
