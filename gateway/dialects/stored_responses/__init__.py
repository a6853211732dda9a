"""Responses that their callers asked us to keep."""
