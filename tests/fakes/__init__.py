"""Real HTTP servers that behave like the cloud providers we speak to, faults included."""
