"""An audit's target: a listing and what it claims to be."""

from dataclasses import dataclass
from hashlib import sha256

AUDIT_ID = "audit-"
"""The prefix of audits' request ids; no caller's request id has it."""


@dataclass(frozen=True, slots=True)
class AuditTarget:
    """A listing as the buyer knows it now. Its claims are part of its id, so a new model starts over."""

    listing: str
    seller: str
    owner: str
    model: str
    weights: str
    quantization: str
    is_probation: bool

    @property
    def id(self) -> str:
        listed = "\n".join((self.seller, self.model, self.weights, self.quantization))
        return sha256(listed.encode()).hexdigest()
