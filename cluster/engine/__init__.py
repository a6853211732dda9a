"""What runs on nodes: the head's loop, a stage's loop, and what is decided in them for every step."""
