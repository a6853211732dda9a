"""Measure what a gateway costs on top of its upstream: Millrace and its peers in front of one mock, in one run."""
