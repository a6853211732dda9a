"""What gateways say to each other with their signature under it, and which of it counts."""
