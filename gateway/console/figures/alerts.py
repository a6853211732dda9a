"""What a person should look at, each with what helps: machines, lanes, books, credits. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from accounting.money import format_usd
from gateway.console.figures.picture import Picture
from gateway.guests.agent import UNREACHED, AgentWord
from gateway.lanes.base import Offer
from gateway.records.inspection import Condition
from gateway.routing.pauses import Pause

Tone = Literal["bad", "warn", "info"]

# A bookkeeper that keeps up has less than a batch or two before it.
BEHIND_MAX = 2_000
LOW_DAYS = 3
_PACE_DAYS = 7
_RULES_TOLD = 3
# What the agent says that no waiting helps against; whether it is idle enough is its owner's wish.
_STUCK = (
    "this cannot be listed",
    "this identity's key is revoked",
    "the gateway gives no key",
    "the gateway has none",
)


@dataclass(frozen=True, slots=True)
class Alert:
    """`href` is where the remedy is, where the console has it."""

    tone: Tone
    what: str
    remedy: str
    href: str = ""


def of_cluster(status: str, reason: str, picture: Picture, absent: Mapping[str, str]) -> list[Alert]:
    """A ring that failed; `absent` local nodes, with why; what machines and the links are warned of."""
    found = []
    if status == "failed":
        found.append(
            Alert("bad", f"The cluster does not serve: {reason}", "Its page says why", "/console/cluster")
        )
    found += [
        Alert("bad", f"{name} {why}", "The gateway's log has the node's last lines", "/console/cluster#events")
        for name, why in absent.items()
    ]
    for tank in picture.tanks:
        path = f"/console/cluster/machines/{tank.node_id}"
        found += [
            Alert("warn", f"{tank.name}: {each.what}", _as_sentence(each.remedy), path) for each in tank.warnings
        ]
    told = {tank.name for tank in picture.tanks for each in tank.warnings if each.cause == "wifi"}
    for wire in picture.wires:
        if wire.mark and not {wire.sender, wire.receiver} & told:
            what = f"The link from {wire.sender} to {wire.receiver} is {wire.mark}: {wire.delay}, {wire.rate}"
            remedy = "Connect both by cable, or have another machine take the stage"
            found.append(Alert("warn", what.rstrip(", "), remedy, "/console/cluster#links"))
    return found


def of_lanes(offers: Iterable[Offer]) -> list[Alert]:
    """Backends that are down, each once; what is only starting or drained was somebody's wish."""
    found: dict[str, Alert] = {}
    for offer in offers:
        if offer.state == "down" and offer.label not in found and offer.lane != "cluster":
            why, _, helps = offer.note.partition("; ")
            remedy = (
                helps or "its models come from elsewhere, or from nobody, until it is back; its own log says why"
            )
            what = f"{offer.label} is down: {why or 'it does not answer'}"
            found[offer.label] = Alert("warn", what, _as_sentence(remedy), "/console/models")
    return list(found.values())


def of_silent(backends: Iterable[tuple[str, str]]) -> list[Alert]:
    """Backends of the pool, by name and why, silent since the start: no model of theirs is known."""
    remedy = "Start it, correct its address, or remove it with `millrace pool remove NAME`"
    return [
        Alert("warn", f"pool:{name} has not answered since the gateway started: {why}", remedy, "/console/models")
        for name, why in backends
    ]


def of_troubles(troubles: Iterable[str]) -> list[Alert]:
    """What keeps the gateway from storing anything, or its clouds from answering."""
    remedy = "Mend it; the gateway looks again by itself"
    return [Alert("bad", _as_sentence(trouble), remedy) for trouble in troubles]


def of_selling(agent: AgentWord | None, now_s: float) -> list[Alert]:
    """An agent that is gone, that nobody reaches, or that cannot sell although its owner's rules let it."""
    path = "/console/selling"
    if agent is None:
        return []
    if agent.is_silent(now_s):
        remedy = "Start it again with `millrace sell`; its own log says why it ended"
        return [Alert("warn", "The selling agent is not heard of any more", remedy, path)]
    if agent.state == UNREACHED:
        remedy = "Look at the tunnel: the agent's log has cloudflared's last lines"
        return [Alert("warn", "The tunnel is down: no buyer reaches this machine", remedy, path)]
    if agent.state.startswith(_STUCK):
        return [Alert("warn", f"Nothing is sold: {agent.state}", "The agent's log has the details", path)]
    return []


def of_pauses(pauses: Iterable[Pause]) -> list[Alert]:
    found = []
    for pause in pauses:
        who = pause.actor.removeprefix("person:")
        if pause.name == "selling":
            what, rests = (
                "Selling is paused",
                "No guests come in, and nothing is listed, until somebody resumes it",
            )
        else:
            what, rests = f"The {pause.name} lane is paused", "Nothing is sent there until somebody resumes it"
        found.append(Alert("info", f"{what}, by {who}", f"{rests}, with the button at the top"))
    return found


def of_books(condition: Condition, waiting: int, *, is_behind: bool, trouble: str | None) -> list[Alert]:
    """`waiting` ended requests are not booked yet; what waits although nothing does is on disk."""
    if not condition.is_reachable:
        remedy = "Is it running, is its disk full? Until it answers, nothing is spent and answers wait on disk"
        return [Alert("bad", "The database does not answer", remedy)]
    found = []
    if condition.broken:
        rules = ", ".join(condition.broken[:_RULES_TOLD])
        remedy = (
            "Run `millrace ledger health`: it names the rows; while a rule about money is broken nothing is spent"
        )
        found.append(Alert("bad", f"The books break a rule: {rules}", remedy, "/console/balance"))
    if waiting > BEHIND_MAX:
        remedy = "Look at the database's disk and load; requests are answered, their rows come later"
        found.append(Alert("warn", f"The books are behind: {waiting:,} requests wait to be written", remedy))
    elif is_behind and not waiting:
        remedy = "They are booked by themselves once the database takes them; the log says what held them up"
        found.append(Alert("warn", "Ended requests wait on disk to be booked", remedy))
    if trouble:
        remedy = "The log says what the signing of blocks met: mostly the key file or the disk"
        found.append(Alert("warn", "No block of the ledger can be signed", remedy))
    return found


def of_credit(available_nano: int, charged_week_nano: int, frozen_why: str | None) -> list[Alert]:
    """Credits that will not last `LOW_DAYS` at the last week's pace."""
    if frozen_why:
        return [Alert("bad", f"Your credits are frozen: {frozen_why}", "See your balance", "/console/balance")]
    if not charged_week_nano or available_nano * _PACE_DAYS >= charged_week_nano * LOW_DAYS:
        return []
    left = available_nano * _PACE_DAYS / charged_week_nano
    lasts = "none are left" if available_nano <= 0 else f"${format_usd(available_nano)} last about {left:.1f} days"
    remedy = "Top up, or let requests wait for own machines"
    return [Alert("warn", f"Credits are low: {lasts} at the last week's pace", remedy, "/console/balance")]


def most_urgent(alerts: Sequence[Alert], shown: int) -> tuple[list[Alert], int]:
    """The first of them, worst first, and how many more there are."""
    order = {"bad": 0, "warn": 1, "info": 2}
    ranked = sorted(alerts, key=lambda alert: order[alert.tone])
    return ranked[:shown], max(0, len(ranked) - shown)


def _as_sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
