"""What the gateway sends its buyer for."""

from dataclasses import dataclass

from gateway.auditing.wares import AUDIT_ID
from gateway.buying.wanted import Asked


@dataclass(frozen=True, slots=True)
class Errand:
    """What the gateway wants: a request, the listing that it has chosen, and the most that it pays in all.

    `continues`: another copy of the model, though not byte for byte the same, may go on with half an answer.
    `is_alone`: nobody else may.
    """

    id: str
    asked: Asked
    listing: str
    ceiling_nano: int
    continues: bool = False
    is_alone: bool = False

    @property
    def is_audit(self) -> bool:
        """Whether it is ours, to see how the seller answers."""
        return self.id.startswith(AUDIT_ID)
