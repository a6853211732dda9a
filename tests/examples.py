"""How many examples hypothesis tries: few in `make test`, all in `make test-slow`."""

from hypothesis import settings

EXAMPLES = 25
"""For each property that names no number itself. `make test-slow` tries hypothesis' own hundred."""


def examples(few: int, wide: int) -> int:
    """Return `few` for `make test`, `wide` for `make test-slow`."""
    return wide if settings.get_current_profile_name() == "wide" else few
