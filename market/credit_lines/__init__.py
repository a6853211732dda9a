"""Friends: gateways with which this one has a credit line, without a house between them."""
