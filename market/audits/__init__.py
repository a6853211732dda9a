"""Audits of sellers among ordinary requests: what is asked, when, and what is remembered."""
