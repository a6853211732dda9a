"""Describe what sellers offer, when, and at which price."""
