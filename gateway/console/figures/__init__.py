"""Figures that pages show, as pure functions of known data."""
