"""The caller: the identity and permissions behind a valid key."""

from dataclasses import dataclass

from accounting.rules.held import Payer
from gateway.quota import Quota
from gateway.settings.base import LaneName, Privacy, Role

HOME = "home"
"""The home organization, whose admins run this gateway."""
OWNER = "owner"
"""The organization's own account, which also owns keys created without a named user."""
MARKET_JOBS = "market-jobs"
"""The ledger account for requests of the market's jobs. The name is reserved: no user can have it."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request, and its key's permissions. `user_id` is the user, whose ledger account pays.

    `privacy` is the minimum label of the key's requests; `models` and `regions` are None if all are allowed.
    Requests with a lower `priority` number go first: 0 is interactive, 10 is a batch. An admin's key
    `may_administer` only if it was created with admin access. Preemptible requests (gateway.lanes.preemptible)
    come from the market: they may only use idle capacity.
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
    is_preemptible: bool = False

    @property
    def payer(self) -> Payer:
        """Return the accounts that pay: the user's, and the organization's while the user belongs to it."""
        return Payer(self.user_id, self.organization_id)

    @property
    def owns_provider_keys(self) -> bool:
        """Whether this is an admin of this gateway with a spending limit, who needs no credits for providers."""
        is_operator = self.role == "admin" and self.organization_id == HOME
        return is_operator and any(quota.measure == "spend" and not quota.model for quota in self.quotas)
