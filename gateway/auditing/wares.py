"""What is audited: a listing, together with what it says to be; and what an audit came to."""

from dataclasses import dataclass
from hashlib import sha256

from msgspec import Struct

AUDIT_ID = "audit-"
"""How the request ids of audits begin: no caller's does."""
BOOKED_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Ware:
    """A listing as the buyer knows it just now. What it says to be is part of its id: a new model begins anew.

    `tells` is whether it answers with log probabilities where they are asked for.
    """

    listing: str
    seller: str
    owner: str
    model: str
    weights: str
    quantization: str
    is_probation: bool
    tells: bool = False

    @property
    def id(self) -> str:
        said = "\n".join((self.seller, self.model, self.weights, self.quantization))
        return sha256(said.encode()).hexdigest()


class Cost(Struct, frozen=True):
    """What one audit came to, by our own receipts."""

    id: str
    seller: str
    amount_nano: int


class Costs(Struct, frozen=True):
    """What the buyer's process tells the gateway."""

    audits: tuple[Cost, ...] = ()
