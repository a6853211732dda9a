"""State of the selling agent, and its remedy, from the agent's last report. Pure."""

from dataclasses import dataclass
from typing import Literal

from gateway.admin.idle import Idle
from gateway.lanes.preemptible.agent import AgentWord
from market.seller.states import SELLING, UNREACHED
from market.settings.seller import SellingSettings

Tone = Literal["good", "busy", "info", "warn", "bad", "off"]

_RULES = {
    "gpu": "The accelerator is used by other programs, or its load is unknown",
    "battery": "The machine runs on battery",
    "outside of the owner's hours": "It is outside your hours",
}
_AT_ONCE = "No action needed: it is listed again as soon as this ends."


@dataclass(frozen=True, slots=True)
class AgentView:
    """`word` is the state in one or two words; `remedy` is the action to take, or that none is needed."""

    word: str
    tone: Tone
    what: str
    remedy: str = ""

    @property
    def is_there(self) -> bool:
        return self.word not in ("not started", "unavailable")


def agent_view(
    agent: AgentWord | None,
    now_s: float,
    preemptible_jobs: int,
    *,
    is_paused: bool,
    idle: Idle,
    settings: SellingSettings,
) -> AgentView:
    """Return the view of this gateway's agent; `preemptible_jobs` is the number of running marketplace jobs."""
    if agent is None:
        return AgentView("not started", "off", "No selling agent has connected since this gateway started.")
    if agent.is_silent(now_s):
        return AgentView(
            "unavailable",
            "bad",
            "The agent has not reported for minutes.",
            "Restart it; its own log has the reason.",
        )
    if is_paused:
        return AgentView(
            "paused",
            "info",
            "An operator paused selling. Nothing is listed.",
            "Resume selling with the button above.",
        )
    return _working(agent.state, preemptible_jobs, idle, settings)


def _working(state: str, preemptible_jobs: int, idle: Idle, settings: SellingSettings) -> AgentView:
    if preemptible_jobs:
        many = "1 buyer request" if preemptible_jobs == 1 else f"{preemptible_jobs} buyer requests"
        return AgentView("serving", "busy", f"The machine is serving {many}.")
    if state == SELLING:
        return AgentView("listed", "good", "The machine is idle and listed for buyers.")
    if state == "own_requests":
        return AgentView(
            "waiting", "info", _own_requests(idle, settings), "No action needed: your requests go first."
        )
    if state in _RULES:
        return AgentView("waiting", "info", f"{_RULES[state]}.", _AT_ONCE)
    if state == UNREACHED:
        return AgentView("tunnel down", "warn", "Buyers cannot reach this machine.", _tunnel_remedy(settings))
    if state == "the gateway has none of the models that are sold":
        return AgentView(
            "no model",
            "warn",
            "None of the listed models can be sold now.",
            "Check that the model is loaded and its weights and tokenizer are known. See “List idle capacity”.",
        )
    if state == "an operator has paused selling" or state == "the gateway has not answered":
        return AgentView("starting", "busy", "The agent is about to check again.")
    return AgentView("blocked", "bad", f"Nothing is sold: {state}.", "See the agent's own log.")


def _own_requests(idle: Idle, settings: SellingSettings) -> str:
    threshold_s = settings.queue_empty_minutes * 60
    if idle.own_in_flight or idle.own_batches:
        return "Your own requests or batches are running."
    left_s = max(0.0, threshold_s - idle.queue_empty_s)
    minutes = -(-left_s // 60)
    return f"Your last request ended recently. Listing starts in about {max(1, minutes):.0f} min."


def _tunnel_remedy(settings: SellingSettings) -> str:
    if settings.tunnel == "none":
        return (
            "Jobs are fetched from the marketplace. Check selling.marketplace_url and that the marketplace answers. "
            "See the agent's log."
        )
    if settings.tunnel == "named":
        return (
            "Check the tunnel at Cloudflare: it must lead to selling.port of this machine, and its token must "
            "be in selling.tunnel_token_file. The agent's log has cloudflared's last lines."
        )
    return (
        "A new tunnel takes up to four minutes. Then check that cloudflared is installed and may connect "
        "(port 7844, UDP or TCP). The agent's log has its last lines. To do without a tunnel, choose "
        "“no tunnel” in the wizard."
    )
