"""Define the signed records that gateways exchange, and which of them count."""
