"""What is counted while requests are answered, as Prometheus reads it."""
