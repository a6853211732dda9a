"""Coordinate several gateways while any of them may fail: who does a job, who is present, and what is revoked."""
