"""Measure what is promised, for `python -m bench check`: each module returns its figures by their names."""
