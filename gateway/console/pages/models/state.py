"""Data for the pages of the models, as far as the visitor may see it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from accounting.money import format_usd
from gateway.admin.catalogue import catalogue
from gateway.billing.model_terms import ModelTerms
from gateway.console.access import Visitor
from gateway.console.figures.models import ModelRow, model_rows
from gateway.console.forms import Form
from gateway.identity.caller import Caller
from gateway.lanes.base import Lanes
from gateway.lanes.pool.members import Pool
from gateway.lanes.pool.residence import can_be_told

_FAILURES_MAX = 20
_FAILURE_S = 3600.0


@dataclass(frozen=True, slots=True)
class FailedRuns:
    """Why models could not be run, if that was known only after their form was answered. One event loop owns it.

    It has the newest failures of the last hour. `clock` is in seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _failures: dict[str, tuple[str, float]] = field(default_factory=dict)

    def add(self, name: str, reason: str) -> None:
        self.forget(name)
        self._failures[name] = reason, self.clock() + _FAILURE_S
        if len(self._failures) > _FAILURES_MAX:
            del self._failures[next(iter(self._failures))]

    def forget(self, name: str) -> None:
        """Forget the failure of this model, since it is run again."""
        self._failures.pop(name, None)

    def newest(self) -> list[tuple[str, str]]:
        """Return the names and reasons, the newest first."""
        now_s = self.clock()
        return [(name, reason) for name, (reason, until_s) in reversed(self._failures.items()) if until_s > now_s]


def rows_of(visitor: Visitor, lanes: Lanes, pool: Pool) -> list[ModelRow]:
    """Return all models for operators, whatever their key allows; for others those that their key allows."""
    loadable: set[str] = set()
    if visitor.is_operator:
        loadable = {name for name in pool.models() if any(can_be_told(pool, offer) for offer in pool.offers(name))}
    return model_rows(catalogue(lanes, caller_of(visitor, lanes)), loadable)


def caller_of(visitor: Visitor, lanes: Lanes) -> Caller:
    """Return the caller; for operators without the limits of the key that they signed in with."""
    if not visitor.is_operator:
        return visitor.caller
    return replace(visitor.caller, lanes=frozenset(lanes), models=None)


async def terms_of(terms: ModelTerms, row: ModelRow) -> dict[str, Any]:
    """Return the values for the forms of a model's page."""
    offer = next((each for each in row.offers if each.lane == "cloud"), None)
    priced = offer.price if offer else None
    names = [each for each in terms.every_alias() if row.name == each.alias or row.name in each.models]
    own = next((each for each in names if each.alias == row.name), None)
    return {
        "has_price": offer is not None,
        "listed": priced.source if priced else "",
        "own_price": next((each for each in terms.now.prices if each.model == row.name), None),
        "price": Form.showing(
            prompt_usd_per_mtok=format_usd(priced.price.prompt_nano) if priced else "",
            completion_usd_per_mtok=format_usd(priced.price.completion_nano) if priced else "",
        ),
        "names": names,
        "alias": Form.showing(alias=own.alias if own else "", models=", ".join(own.models) if own else row.name),
    }
