"""Who is asking: what a valid key stands for."""

from dataclasses import dataclass

from gateway.settings import LaneName


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is asking, and what the key allows."""

    key_id: str
    key_prefix: str
    user_id: str
    department: str
    lanes: frozenset[LaneName]
