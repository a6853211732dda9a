"""Friends: gateways with which this one has a credit line, and no house between them."""
