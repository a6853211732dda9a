"""Measure how much of the gateway's hot path open live pages use."""
