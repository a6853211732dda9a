"""Who is asking: what a valid key stands for."""

from dataclasses import dataclass

from accounting.rules.held import Payer
from gateway.quota import Quota
from gateway.settings.base import LaneName, Privacy, Role

HOME = "home"
"""The organization whose machine this is."""
OWNER = "owner"
"""Its own account, and whose keys are that name nobody."""
GUESTS = "guests@market"
"""Whose the requests of the market's guests are in the books. Nobody can be called so."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is asking, and what the key allows. `user_id` is the person, whose account in the books pays.

    `privacy` is the least label that the key's requests have; `models` and `regions` are None where all are
    allowed. Requests of a lower `priority` number go first: 0 is interactive, 10 is a batch. An
    admin's key `may_administer` only if it was made for that. Requests of a guest (gateway.guests) come over the
    market: they have what is idle, and nothing else here is open to them.
    """

    key_id: str
    key_prefix: str
    user_id: str
    department: str
    lanes: frozenset[LaneName]
    organization_id: str = HOME
    role: Role = "member"
    privacy: Privacy = "public"
    models: frozenset[str] | None = None
    regions: frozenset[str] | None = None
    priority: int = 0
    may_administer: bool = False
    quotas: tuple[Quota, ...] = ()
    is_guest: bool = False

    @property
    def payer(self) -> Payer:
        """Whose credits pay: the person's, and the organization's for as long as the person belongs to it."""
        return Payer(self.user_id, self.organization_id)

    @property
    def owns_provider_keys(self) -> bool:
        """Whether this is an admin of this gateway with a spending limit, who needs no credits for providers."""
        is_operator = self.role == "admin" and self.organization_id == HOME
        return is_operator and any(quota.measure == "spend" and not quota.model for quota in self.quotas)
