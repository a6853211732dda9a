"""Audits of sellers, placed among ordinary requests: what is asked, when, and what is remembered of it."""
