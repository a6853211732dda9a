"""The gateway's metrics in Prometheus format.

Modules:
    metrics  Every Prometheus metric by name; docs/operations.md has the same list, and a test compares them
    tallies  Counters, gauges and histograms as plain numbers: cheap to update, converted for Prometheus at the
             scrape
"""
