"""Audit sellers: the evidence of what they run, what it says, and what follows. Pure."""
