"""The base classes and types of every settings section."""

from typing import Literal

LaneName = Literal["cluster", "pool", "cloud", "market"]

FOREIGN: frozenset[LaneName] = frozenset(("cloud", "market"))
"""Lanes to third parties' machines: requests there are never private, and are charged."""

Privacy = Literal["public", "internal", "private"]
"""How far a request may travel.

`private`: your machines only; `internal`: also providers under contract; `public`: anywhere. A lane, a backend or a
provider is cleared up to one of them.
"""

PRIVACY_RANK: dict[Privacy, int] = {"public": 0, "internal": 1, "private": 2}

Role = Literal["admin", "member", "seller"]
