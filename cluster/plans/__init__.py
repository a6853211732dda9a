"""Which machine holds what, and why: pure functions of machines, links and model."""
