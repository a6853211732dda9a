"""One backend of the pool: its origin, its last probe's result, and its offers."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gateway.lanes.aliases import Aliases
from gateway.lanes.base import Offer
from gateway.lanes.pool.loads import LoadTimes
from gateway.lanes.pool.offers import Offering, Standing, offering
from gateway.lanes.pool.report import BackendReport
from gateway.settings.pool import BackendKind, PoolBackend

Origin = Literal["settings", "added"]

# These kinds continue an assistant's last message, by default or on request.
CONTINUE: frozenset[BackendKind] = frozenset(("vllm", "sglang", "llama-server", "ollama"))
_NOT_ASKED = Standing("starting", "not asked yet")


@dataclass(slots=True)
class Backend:
    """Written by its prober and by the pool, on one event loop; requests only read `offers`."""

    settings: PoolBackend
    aliases: Aliases
    origin: Origin = "settings"
    on_change: Callable[[], None] = lambda: None
    """Called after every change of its offers."""
    kind: BackendKind = "auto"
    is_draining: bool = False
    report: BackendReport = field(default_factory=BackendReport)
    probed: Standing = _NOT_ASKED
    asked_s: float | None = None
    """The time of its last answer, on the monotonic clock."""
    loads: LoadTimes = field(default_factory=LoadTimes)
    _offering: Offering = field(default_factory=lambda: Offering({}), init=False)

    def __post_init__(self) -> None:
        self.kind = self.settings.kind
        self._renew()

    @property
    def headers(self) -> dict[str, str]:
        key = self.settings.api_key
        return {"authorization": f"Bearer {key.get_secret_value()}"} if key else {}

    @property
    def standing(self) -> Standing:
        """The probe's result, unless the backend is draining."""
        if self.is_draining:
            return Standing(
                "draining", f"is drained; `millrace pool undrain {self.settings.name}` enables it again"
            )
        return self.probed

    @property
    def offers(self) -> dict[str, Offer]:
        return dict(self._offering.offers)

    def offer(self, model: str) -> Offer | None:
        return self._offering.offers.get(model)

    @property
    def names(self) -> list[str]:
        return list(self._offering.offers)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._offering.warnings

    def heard(self, report: BackendReport, note: str = "") -> bool:
        """Note an answer; one is enough to be ready again. Return whether the state changed."""
        self.asked_s = time.monotonic()
        before = (self.report, self.probed)
        self.report, self.probed = report, Standing("ready", note)
        if before != (self.report, self.probed):
            self._renew()
        return before[1].state != "ready"

    def missed(self, standing: Standing) -> bool:
        """Note a failed probe; its models stay known. Return whether the state changed."""
        before, self.probed = self.probed, standing
        if before != standing:
            self._renew()
        return before.state != standing.state

    def drain(self, *, draining: bool) -> None:
        """Drain the backend, or end draining; running requests continue."""
        self.is_draining = draining
        self._renew()

    def call(self, aliases: Aliases) -> None:
        """Set the aliases of its models."""
        self.aliases = aliases
        self._renew()

    def loaded(self, served_as: str, seconds: float) -> None:
        """Record the time to the first byte of a model that had to be loaded."""
        self.loads.saw(served_as, seconds)
        self._renew()

    def _renew(self) -> None:
        found = offering(self.settings, self.report, self.standing, self.aliases, self.loads)
        if self.kind in CONTINUE:
            offers = {name: replace(offer, continues=True) for name, offer in found.offers.items()}
            found = replace(found, offers=offers)
        self._offering = found
        self.on_change()

    def as_data(self) -> dict[str, Any]:
        """Return the backend for users and programs, without its key."""
        report, standing = self.report, self.standing
        return {
            "name": self.settings.name,
            "kind": self.kind,
            "base_url": self.settings.base_url,
            "origin": self.origin,
            "state": standing.state,
            "note": standing.note,
            "models": self.names,
            "served_as": {name: o.served_as for name, o in self._offering.offers.items() if o.served_as},
            "resident": [model.name for model in report.models if model.is_resident],
            "slots": self.settings.slots or report.slots,
            "running": report.running,
            "queued": report.queued,
            "kv_used": report.kv_used,
            "weight": self.settings.weight,
            "clearance": self.settings.cleared_for,
            "region": self.settings.region,
            "answered_s_ago": None if self.asked_s is None else round(time.monotonic() - self.asked_s, 1),
            "warnings": list(self.warnings),
        }
