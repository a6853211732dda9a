"""How the selling agent is, and what helps: its own last word, put for people. Pure."""

from dataclasses import dataclass
from typing import Literal

from gateway.api.idle import Idle
from gateway.guests.agent import SELLING, UNREACHED, AgentWord
from gateway.settings import SellingSettings

Tone = Literal["good", "busy", "info", "warn", "bad", "off"]

_RULES = {
    "gpu": "The accelerator is busy with something else, or does not say how busy it is",
    "battery": "The machine runs on its battery",
    "outside of the owner's hours": "It is outside of your hours",
}
_AT_ONCE = "Nothing to do: it is listed as soon as that is over."


@dataclass(frozen=True, slots=True)
class AgentView:
    """`word` is the state in a word or two; `remedy` is what to do, or that there is nothing to do."""

    word: str
    tone: Tone
    what: str
    remedy: str = ""

    @property
    def is_there(self) -> bool:
        return self.word not in ("not started", "gone")


def agent_view(
    agent: AgentWord | None, now_s: float, guests: int, *, is_paused: bool, idle: Idle, settings: SellingSettings
) -> AgentView:
    """What there is to say of the agent beside this gateway; `guests` are answered now."""
    if agent is None:
        return AgentView("not started", "off", "No selling agent has spoken to this gateway since it started.")
    if agent.is_silent(now_s):
        return AgentView(
            "gone", "bad", "The agent has not been heard of for minutes.", "Start it again; its own log says why."
        )
    if is_paused:
        return AgentView(
            "paused",
            "info",
            "An operator has paused selling: nothing is listed.",
            "Resume it with the button above.",
        )
    return _working(agent.state, guests, idle, settings)


def _working(state: str, guests: int, idle: Idle, settings: SellingSettings) -> AgentView:
    if guests:
        many = "a buyer's request" if guests == 1 else f"{guests} requests of buyers"
        return AgentView("serving", "busy", f"It answers {many} now.")
    if state == SELLING:
        return AgentView("listed", "good", "The machine is idle and listed; buyers can come.")
    if state == "own_requests":
        return AgentView(
            "waiting", "info", _own_requests(idle, settings), "Nothing to do: your requests go first."
        )
    if state in _RULES:
        return AgentView("waiting", "info", f"{_RULES[state]}.", _AT_ONCE)
    if state == UNREACHED:
        return AgentView("tunnel down", "warn", "No buyer reaches this machine.", _tunnel_remedy(settings))
    if state == "the gateway has none of the models that are sold":
        return AgentView(
            "no model",
            "warn",
            "None of the models that are sold can be sold now.",
            "Is the model loaded, and are its weights and tokenizer known? “List idle capacity” says which.",
        )
    if state == "an operator has paused selling" or state == "the gateway has not answered":
        return AgentView("starting", "busy", "The agent is about to look again.")
    return AgentView("held up", "bad", f"Nothing is sold: {state}.", "The agent's own log has the details.")


def _own_requests(idle: Idle, settings: SellingSettings) -> str:
    wanted_s = settings.queue_empty_minutes * 60
    if idle.own_in_flight or idle.own_batches:
        return "Your own requests or batches run now."
    left_s = max(0.0, wanted_s - idle.queue_empty_s)
    minutes = -(-left_s // 60)
    return f"Your last request ended a short while ago; it is sold in about {max(1, minutes):.0f} min."


def _tunnel_remedy(settings: SellingSettings) -> str:
    if settings.tunnel == "none":
        return (
            "Work is fetched from the house: is selling.house_url right, and does the house answer? "
            "The agent's log says what it met."
        )
    if settings.tunnel == "named":
        return (
            "Look at the tunnel at Cloudflare: it has to lead to selling.port of this machine, and its token has "
            "to be in selling.tunnel_token_file. The agent's log has cloudflared's last lines."
        )
    return (
        "A new tunnel takes up to four minutes. After that: is cloudflared installed, may it call out (UDP or TCP "
        "7844)? The agent's log has its last lines. Without any tunnel: “no tunnel” in the wizard."
    )
