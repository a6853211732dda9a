"""The demo: a small model that ships with the repository and what trains it."""
