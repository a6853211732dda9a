"""The gateway's metrics in Prometheus format.

Modules:
    metrics  Every Prometheus metric by name; docs/operations.md says the same, and a test compares
    tallies  Counts, levels and spreads as plain numbers: cheap to add to, made into Prometheus samples at the
             scrape
"""
