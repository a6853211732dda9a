"""The states that a seller reports, in addition to the reasons why it sells nothing."""

SELLING = "selling"
UNREACHED = "buyers cannot reach this machine yet"
"""Its tunnel, or the address that buyers are given, leads nowhere now."""
