"""What pages draw, as pure functions of what is known."""
