"""The gateway's metrics in Prometheus format."""
