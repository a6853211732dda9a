"""Files that callers upload, and batches of requests that are answered on idle capacity."""
