"""The choice of which machine holds which layers, with reasons: pure functions of machines, links and model."""
