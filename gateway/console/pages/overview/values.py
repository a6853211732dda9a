"""Values that the overview shows at one moment, read from the running gateway: once, and live."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import Query

from accounting.rules.held import Payer
from accounting.spending.funding_sources import credits_of
from gateway import app_state
from gateway.admin.authority import scope_of as part_of
from gateway.admin.troubles import troubles_of
from gateway.billing.request_filter import RequestFilter
from gateway.billing.request_log import RequestEntry
from gateway.console.access import Visitor
from gateway.console.figures import alerts
from gateway.console.figures.alerts import Alert
from gateway.console.figures.cloud_prices import CloudEquals
from gateway.console.figures.layout import Sketch, sketch
from gateway.console.figures.month import Month, charged, month
from gateway.console.figures.now import LANES, TOGETHER, ChartRow, first_tokens, throughput
from gateway.console.figures.usage import DAYS, UsageFigures
from gateway.console.live import Points, Region
from gateway.console.pages.cluster.state import PICTURE_PARTS
from gateway.console.pages.requests.wanted import as_shown
from gateway.identity.key_queries import names_of
from gateway.lanes.pool.lane import PoolLane
from gateway.routing.pauses import Pausable

REQUESTS_SHOWN = 10
ALERTS_SHOWN = 6
MODELS_SHOWN = 8
USERS_SHOWN = 200
_WEEK_DAYS = 7
# Last week's rate hardly changes within a minute.
_WEEK_AS_OF_S = 60.0
_PACE_S = 900
# A caller with few requests may have made the last one long ago, behind many others.
_STRETCHES = 10


@dataclass(frozen=True, slots=True)
class Scope:
    """`name` is the scope as limits name it, None for all.

    `has_machines` adds the state and load of the machines, which contain no requests and no money.
    """

    kind: Literal["instance", "organization", "user"]
    name: str | None
    filters: RequestFilter
    has_machines: bool = False

    @property
    def is_instance(self) -> bool:
        return self.kind == "instance"


def scope_of(visitor: Visitor) -> Scope:
    """Return the scope: an operator sees the instance, an admin their organization, other users themselves.

    A session opened with a key sees only that key's requests, unless the key has admin access. An operator's
    session with such a key also sees the machines and their load.
    """
    caller = visitor.caller
    if visitor.is_operator and visitor.may_administer:
        return Scope("instance", None, RequestFilter(), has_machines=True)
    if visitor.may_administer:
        organization_id = caller.organization_id
        filters = RequestFilter(organization_id=organization_id)
        return Scope("organization", f"organization:{organization_id}", filters)
    if caller.key_id:
        own = RequestFilter(key_id=caller.key_id)
        return Scope("user", f"key:{caller.key_id}", own, has_machines=visitor.is_operator)
    return Scope("user", f"user:{caller.user_id}", RequestFilter(user_id=caller.user_id))


@dataclass(frozen=True, slots=True)
class Credit:
    """A visitor's credits, in nano-USD, and what they were charged in the last week."""

    available_nano: int
    held_nano: int
    week_nano: int
    frozen_why: str | None


@dataclass(frozen=True, slots=True)
class KeyUse:
    """`name` is the key's name, or a placeholder for requests without a key."""

    key_id: str
    name: str
    requests: int
    tokens: int
    charged_nano: int


Usage = Annotated[UsageFigures, app_state.held("usage")]


@dataclass(frozen=True, slots=True)
class Load:
    """The lanes, and their load now and over the last day."""

    lanes: app_state.Lanes
    history: app_state.History
    metrics: app_state.Metrics
    admission: app_state.Admission
    turns: app_state.Turns


@dataclass(frozen=True, slots=True)
class Sources:
    """What the overview reads: machines, load and storage, requests, and money."""

    load: Annotated[Load, app_state.bundle(Load)]
    controller: app_state.Controller
    jobs: app_state.PreemptibleJobs
    pauses: app_state.Pauses
    storage: app_state.Storage
    request_log: app_state.RequestLog
    ledger: app_state.Ledger
    bookkeeper: app_state.Bookkeeper
    usage: Usage
    settings: app_state.Settings


async def overview(visitor: Visitor, sources: Sources, whose: str = "") -> dict[str, Any]:
    """Return the values of every part; values only for the instance are None for others.

    `whose` selects the thirty days: a scope as limits name it that the visitor may see, or empty for all.
    Raises DatabaseFailing, RequestInvalid, NotFound, RoleForbids.
    """
    scope = scope_of(visitor)
    part = await part_within(visitor, whose)
    values = await common(sources, scope, part)
    return values | personal(values, await credit_of(visitor, sources.ledger, sources.usage)) | {"whose": whose}


async def part_within(visitor: Visitor, whose: str) -> str | None:
    """Return the scope of the thirty days as limits name it. Raises RequestInvalid, NotFound, RoleForbids."""
    if not whose:
        return scope_of(visitor).name
    return await asyncio.to_thread(part_of, visitor.authority, whose)


async def common(sources: Sources, scope: Scope, part: str | None) -> dict[str, Any]:
    """Return the values shared by all viewers of this scope and this part of it. Raises DatabaseFailing."""
    load = sources.load
    cluster = _cluster(sources.controller) if scope.has_machines else None
    of_scope = await _month(sources, scope, scope.name)
    spent = of_scope if part == scope.name else await _month(sources, scope, part)
    return {
        "scope": scope,
        "instance_alerts": await _alerts(sources, scope, cluster) if cluster else [],
        "cluster": cluster,
        "recent": load.history.recent() if scope.has_machines else None,
        "pace": load.history.recent(_PACE_S).pace if scope.has_machines else None,
        "since_ns": int(load.history.since_s * 1e9),
        "busy": _busy(sources.controller, load.history) if scope.has_machines else None,
        "waiting": load.turns.all_waiting,
        "in_flight": load.admission.in_flight,
        "month": of_scope,
        "spent": spent,
        "days": DAYS,
        "models": spent.by_model[:MODELS_SHOWN],
        "keys": await key_uses(sources.ledger, sources.usage, part, MODELS_SHOWN),
        "requests": await asyncio.to_thread(_requests, sources.request_log, scope),
    }


def personal(values: dict[str, Any], credit: Credit) -> dict[str, Any]:
    """Return the values that are the visitor's own, or contain such values."""
    own = alerts.of_credit(credit.available_nano, credit.week_nano, credit.frozen_why)
    ranked, more = alerts.most_urgent([*values["instance_alerts"], *own], ALERTS_SHOWN)
    return {"alerts": ranked, "more_alerts": more, "credit": credit}


def _busy(controller: app_state.Controller, history: app_state.History) -> float | None:
    """Return the share of time in which the cluster's stages computed; None without a plan."""
    plan = controller.topology().plan
    if plan is None or not plan.stages:
        return None
    return min(1.0, history.recent().busy.get("cluster", 0.0) / len(plan.stages))


def _cluster(controller: app_state.Controller) -> Sketch:
    model = controller.chat.model
    return sketch(controller.topology(), model.card if model else None)


async def _month(sources: Sources, scope: Scope, name: str | None) -> Month:
    rows = await sources.usage.rows(name)
    equals = CloudEquals(sources.load.lanes, sources.settings.costs.compared_with)
    prices = equals.prices({row.model for row in rows}) if scope.is_instance else {}
    return month(rows, prices, time.time_ns(), DAYS)


async def credit_of(visitor: Visitor, ledger: app_state.Ledger, usage: UsageFigures) -> Credit:
    """Return the visitor's credits. Raises DatabaseFailing."""
    caller = visitor.caller
    payer = Payer(caller.user_id, caller.organization_id)
    funding = await ledger.look(lambda session: credits_of(session, payer, time.time_ns()))
    balance = await ledger.balance(caller.user_id)
    rows = await usage.rows(f"user:{caller.user_id}", _WEEK_AS_OF_S)
    since = str((datetime.now(UTC) - timedelta(days=_WEEK_DAYS - 1)).date())
    return Credit(
        sum(share.amount_nano for share in funding),
        balance.held_nano,
        charged(rows, since),
        ledger.frozen_why(caller.user_id),
    )


async def _alerts(sources: Sources, scope: Scope, cluster: Sketch) -> list[Alert]:
    """Return the alerts; alerts of the ledger only for the instance."""
    status, reason = sources.controller.chat.status
    offers = (
        offer for lane in sources.load.lanes.values() for name in lane.models() for offer in lane.offers(name)
    )
    return [
        *(await _of_ledger(sources.ledger, sources.bookkeeper) if scope.is_instance else ()),
        *alerts.of_cluster(status, reason, cluster.picture, sources.controller.absences.by_name),
        *(alerts.of_troubles(troubles_of(sources.storage, sources.load.lanes)) if scope.is_instance else ()),
        *alerts.of_lanes(offers),
        *alerts.of_silent(_silent(sources.load.lanes)),
        *alerts.of_selling(sources.jobs.agent, time.monotonic()),
        *alerts.of_pauses(sources.pauses.now),
    ]


def _silent(lanes: app_state.Lanes) -> list[tuple[str, str]]:
    """Return backends that never answered and whose models are unknown, so no endpoint reports them."""
    pool = lanes["pool"]
    assert isinstance(pool, PoolLane)
    standings = [(each.settings.name, each.standing) for each in pool.pool.backends() if not each.names]
    return [(name, standing.note) for name, standing in standings if standing.state == "down"]


async def _of_ledger(ledger: app_state.Ledger, bookkeeper: app_state.Bookkeeper) -> list[Alert]:
    unproven = ledger.unproven
    return alerts.of_ledger(
        await ledger.condition(),
        ledger.waiting + bookkeeper.waiting,
        is_behind=bookkeeper.is_behind,
        trouble=unproven.trouble if unproven else None,
    )


async def key_uses(
    ledger: app_state.Ledger, usage: UsageFigures, part: str | None, most: int | None = None
) -> list[KeyUse]:
    """Return the usage of each key in these days, or of `most` keys, most tokens first. Raises DatabaseFailing."""
    used = (await usage.keys(part))[:most]
    names = await ledger.look(lambda session: names_of(session, [total.group[0] for total in used]))
    return [
        KeyUse(
            total.group[0],
            key_name(total.group[0], names),
            total.requests,
            total.prompt_tokens + total.completion_tokens,
            total.charge_nano,
        )
        for total in used
    ]


def key_name(key_id: str, names: Mapping[str, str]) -> str:
    """Return the key's name. Sessions of the console have no key."""
    return names.get(key_id, key_id) or "console"


def _requests(log: app_state.RequestLog, scope: Scope) -> list[RequestEntry]:
    found = log.page(scope.filters, REQUESTS_SHOWN, stretches=_STRETCHES, has_decisions=False)
    return [as_shown(row, to_operator=scope.is_instance) for row in found.rows]


async def users(visitor: Visitor, scope: Scope) -> list[tuple[str, str]]:
    """Return the scopes that can be selected, with names; none for visitors who see only themselves."""
    if scope.kind == "user":
        return []
    directory = visitor.directory.users
    found = await asyncio.to_thread(directory.users, None if scope.is_instance else visitor.caller.organization_id)
    named = [(f"user:{user.user_id}", user.name) for user in found[:USERS_SHOWN]]
    if not scope.is_instance:
        return named
    organizations = await asyncio.to_thread(directory.organizations)
    return [*((f"organization:{each.organization_id}", each.name) for each in organizations), *named]


def can_pause(sources: Sources) -> dict[Pausable, bool]:
    """Return what can be paused, with whether it is paused; selling only if an agent has connected."""
    paused = {pause.name for pause in sources.pauses.now}
    there: dict[Pausable, bool] = {
        "cloud": "cloud" in sources.load.lanes,
        "market": "market" in sources.load.lanes,
        "selling": sources.jobs.agent is not None,
    }
    return {name: name in paused for name, is_there in there.items() if is_there or name in paused}


SpanName = Literal["quarter", "hour", "day"]
Span = Annotated[SpanName, Query(description="Time range of the charts.")]
Whose = Annotated[str, Query(max_length=200, description="Scope of the thirty days: user:ann, organization:lab.")]
SPANS: dict[SpanName, tuple[int, str]] = {
    "quarter": (900, "15 minutes"),
    "hour": (3600, "1 hour"),
    "day": (86_400, "1 day"),
}

# An answer's tokens are counted when it ends, so earlier slots are sent again.
_TOLD_AGAIN = 60
_COMMON = ("pace", "requests", "models", "keys")
# These contain credits.
_OWN = ("alerts", "stats")


def charts(load: Load, span: SpanName, rows_max: int | None = None) -> dict[str, Any]:
    """Return series and rows of the instance's two charts: all rows, or the last `rows_max`."""
    seconds, _ = SPANS[span]
    step_s = load.history.step_s(seconds)
    # Slots before the start are unknown, not zero.
    since = (load.history.since_s - step_s) // step_s
    slots = [slot for slot in load.history.last(seconds) if slot.number > since]
    if rows_max is not None:
        slots = slots[-rows_max:]
    bounds = load.metrics.first_token_seconds.bounds
    lanes = [lane for lane in LANES if lane in load.lanes]
    return {
        "lanes": lanes,
        "throughput": throughput(slots, step_s, lanes, is_under_way=load.admission.in_flight > 0),
        "first_tokens": first_tokens(slots, step_s, bounds),
        "keeps_s": seconds,
        "span": span,
        "spans": [(name, words) for name, (_, words) in SPANS.items()],
    }


def common_regions(values: dict[str, Any]) -> list[Region]:
    """Return the regions that are the same for all viewers of this scope."""
    parts = {f"overview-{part}": f"overview/{part}.html" for part in _COMMON}
    if values["cluster"] is not None:
        parts |= PICTURE_PARTS
    return [Region(target_id, template, values) for target_id, template in parts.items()]


def own_regions(values: dict[str, Any]) -> list[Region]:
    return [Region(f"overview-{part}", f"overview/{part}.html", values) for part in _OWN]


def points(load: Load, span: SpanName) -> list[Points]:
    # The first rows have too few rows before them.
    drawn = charts(load, span, _TOLD_AGAIN + TOGETHER)
    named: tuple[tuple[str, list[ChartRow]], ...] = (
        ("throughput", drawn["throughput"]),
        ("first-tokens", drawn["first_tokens"]),
    )
    return [Points(name, rows[-_TOLD_AGAIN:]) for name, rows in named]
