"""Alerts for users, each with its remedy: machines, lanes, ledger, credits. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from accounting.money import format_usd
from gateway.billing.inspection import Condition
from gateway.console.figures.picture import Picture
from gateway.lanes.base import Offer
from gateway.lanes.preemptible.agent import AgentWord
from gateway.routing.pauses import Pause
from market.seller.states import UNREACHED

Tone = Literal["bad", "warn", "info"]

# A settlement worker that keeps up has at most a batch or two queued.
BEHIND_MAX = 2_000
LOW_DAYS = 3
_PACE_DAYS = 7
_RULES_TOLD = 3
# Agent states that do not resolve by waiting. Whether the machine is idle enough is the owner's choice.
_STUCK = (
    "this cannot be listed",
    "this identity's key is revoked",
    "the gateway gives no key",
    "the gateway has none",
)


@dataclass(frozen=True, slots=True)
class Alert:
    """`href` leads to the page with the remedy, if the console has one."""

    tone: Tone
    what: str
    remedy: str
    href: str = ""


def of_cluster(status: str, reason: str, picture: Picture, absent: Mapping[str, str]) -> list[Alert]:
    """Return alerts for a failed pipeline, `absent` local nodes with the reason, machines and links."""
    found = []
    if status == "failed":
        found.append(Alert("bad", f"The cluster is not serving: {reason}", "", "/console/cluster"))
    found += [
        Alert("bad", f"{name} {why}", "See the node's last lines in the gateway's log", "/console/cluster#events")
        for name, why in absent.items()
    ]
    for tank in picture.tanks:
        path = f"/console/cluster/machines/{tank.node_id}"
        found += [
            Alert("warn", f"{tank.name}: {each.what}", _as_sentence(each.remedy), path) for each in tank.warnings
        ]
    named = {tank.name for tank in picture.tanks for each in tank.warnings if each.cause == "wifi"}
    for wire in picture.wires:
        if wire.mark and not {wire.sender, wire.receiver} & named:
            what = f"The link from {wire.sender} to {wire.receiver} is {wire.mark}: {wire.delay}, {wire.rate}"
            remedy = "Connect both by cable, or move the stage to another machine"
            found.append(Alert("warn", what.rstrip(", "), remedy, "/console/cluster#links"))
    return found


def of_lanes(offers: Iterable[Offer]) -> list[Alert]:
    """Return one alert for each backend that is down; starting or drained backends are intended."""
    found: dict[str, Alert] = {}
    for offer in offers:
        if offer.state == "down" and offer.label not in found and offer.lane != "cluster":
            why, _, helps = offer.note.partition("; ")
            remedy = helps or "Its models may be unavailable until it is back. Its own log has the reason"
            what = f"{offer.label} is down: {why or 'it does not answer'}"
            found[offer.label] = Alert("warn", what, _as_sentence(remedy), "/console/models")
    return list(found.values())


def of_silent(backends: Iterable[tuple[str, str]]) -> list[Alert]:
    """Return alerts for pool backends, given as name and reason, that have not answered since the start."""
    remedy = "Start it, correct its address, or remove it with `millrace pool remove NAME`"
    return [
        Alert("warn", f"pool:{name} has not answered since the gateway started: {why}", remedy, "/console/models")
        for name, why in backends
    ]


def of_troubles(troubles: Iterable[str]) -> list[Alert]:
    """Return alerts for problems that prevent storing data or cloud answers."""
    remedy = "Fix the cause; the gateway retries automatically"
    return [Alert("bad", _as_sentence(trouble), remedy) for trouble in troubles]


def of_selling(agent: AgentWord | None, now_s: float) -> list[Alert]:
    """Return an alert if the agent is gone, unreachable, or cannot sell although its idle conditions allow it."""
    path = "/console/selling"
    if agent is None:
        return []
    if agent.is_silent(now_s):
        remedy = "Restart it with `millrace sell`; its own log says why it ended"
        return [Alert("warn", "The selling agent has stopped responding", remedy, path)]
    if agent.state == UNREACHED:
        remedy = "Check the tunnel: the agent's log has cloudflared's last lines"
        return [Alert("warn", "The tunnel is down: buyers cannot reach this machine", remedy, path)]
    if agent.state.startswith(_STUCK):
        return [Alert("warn", f"Nothing is sold: {agent.state}", "See the agent's log", path)]
    return []


def of_pauses(pauses: Iterable[Pause]) -> list[Alert]:
    found = []
    for pause in pauses:
        who = pause.actor.removeprefix("user:")
        if pause.name == "selling":
            what, quarantine = (
                "Selling is paused",
                "No new jobs start and nothing is listed until you resume it",
            )
        else:
            what, quarantine = f"The {pause.name} lane is paused", "No new requests use it until you resume it"
        found.append(Alert("info", f"{what}, by {who}", f"{quarantine} with the button at the top"))
    return found


def of_ledger(condition: Condition, waiting: int, *, is_behind: bool, trouble: str | None) -> list[Alert]:
    """Return alerts of the ledger. `waiting` ended requests are not posted yet; further ones may be on disk."""
    if not condition.is_reachable:
        remedy = "Check that it runs and its disk is not full. Until then nothing is spent; usage is kept on disk"
        return [Alert("bad", "The database does not answer", remedy)]
    found = []
    if condition.broken:
        rules = ", ".join(condition.broken[:_RULES_TOLD])
        remedy = "Run `millrace ledger health` to see the rows. Spending stops while a rule about money is broken"
        found.append(Alert("bad", f"The ledger breaks a rule: {rules}", remedy, "/console/balance"))
    if waiting > BEHIND_MAX:
        remedy = "Check the database's disk and load. Requests are still answered; their entries are posted later"
        found.append(Alert("warn", f"The ledger is behind: {waiting:,} requests are not posted yet", remedy))
    elif is_behind and not waiting:
        remedy = "They are posted automatically once the database accepts them. The log has the reason"
        found.append(Alert("warn", "Ended requests on disk are not posted yet", remedy))
    if trouble:
        remedy = "See the log for the cause, usually the key file or the disk"
        found.append(Alert("warn", "Ledger blocks cannot be signed", remedy))
    return found


def of_credit(available_nano: int, charged_week_nano: int, frozen_why: str | None) -> list[Alert]:
    """Return an alert if credits will not last `LOW_DAYS` days at last week's rate, or are frozen."""
    if frozen_why:
        return [
            Alert("bad", f"Your credits are frozen: {frozen_why}", "Ask an instance admin", "/console/balance")
        ]
    if not charged_week_nano or available_nano * _PACE_DAYS >= charged_week_nano * LOW_DAYS:
        return []
    left = available_nano * _PACE_DAYS / charged_week_nano
    lasts = "none left" if available_nano <= 0 else f"${format_usd(available_nano)} last about {left:.1f} days"
    remedy = "Top up, or let requests wait for your machines"
    return [Alert("warn", f"Credits are low: {lasts} at last week's rate", remedy, "/console/balance")]


def most_urgent(alerts: Sequence[Alert], shown: int) -> tuple[list[Alert], int]:
    """Return the most severe alerts, worst first, and the number of the remaining ones."""
    order = {"bad": 0, "warn": 1, "info": 2}
    ranked = sorted(alerts, key=lambda alert: order[alert.tone])
    return ranked[:shown], max(0, len(ranked) - shown)


def _as_sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
