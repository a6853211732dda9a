"""What sellers offer, when, and at which price."""
