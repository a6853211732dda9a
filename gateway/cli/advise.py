"""`millrace advise` and `millrace plan`: where a model should run, before it is downloaded."""

import socket
from dataclasses import replace
from typing import Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.command import Report, with_settings
from gateway.cli.completion import Model
from gateway.cli.gateway_client import ask
from gateway.cli.machines import show_draft
from gateway.settings import Settings
from runtime.data_folder import DataFolder

_ADVICE_S = 120.0
# The id of this machine if no gateway runs.
_HERE = "0" * 32

Context = Annotated[int | None, typer.Option(help="Longest prompt plus answer, in tokens.", min=64)]
PrecisionName = Annotated[
    str | None, typer.Option(help="fp32, bf16, fp16, int8 or int4; default: the highest that fits.")
]


def _show_advice(found: dict[str, Any]) -> None:
    columns = ("option", "possible", "tok/s", "TTFT s", "GiB", "context", "USD/Mtok", "reason")
    output.table(columns, [_row(way) for way in found["ways"]])
    for line in found["because"]:
        output.say(line)
    assumed: list[str] = next((way["assumed"] for way in found["ways"] if way["way"] == found["best"]), [])
    if assumed:
        output.say(f"assumed, not measured: {', '.join(assumed)}")


@with_settings(_show_advice)
def advise(
    settings: Settings,
    model: Annotated[str, Model("Folder, GGUF file or Hugging Face ID.")],
    compare: Annotated[
        str | None, typer.Option(help="Cloud model to compare with, by its name in cloud.models.")
    ] = None,
    context_tokens: Context = None,
    precision: PrecisionName = None,
) -> Any:
    """Recommend where to run a model, with the break-even of your machines.

    Example: millrace advise Qwen/Qwen3-8B
    """
    return _asked(settings, model, compare, context_tokens, precision)


@with_settings()
def plan(
    settings: Settings,
    model: Annotated[
        str | None, Model("Folder, GGUF file or Hugging Face ID; default: the cluster's model.")
    ] = None,
    context_tokens: Context = None,
    precision: PrecisionName = None,
) -> Report:
    """Show how a model would be split across machines; changes nothing. Example: millrace plan Qwen/Qwen3-8B"""
    if model is None:
        return Report(ask(settings, "POST", "/admin/plan", {}, timeout_s=_ADVICE_S), show_draft)
    found = _asked(settings, model, None, context_tokens, precision)
    own = next((way for way in _best_first(found) if way["stages"]), None)
    facts = {"model": found["model"], "plan": own}
    if own is not None:
        return Report(facts, _show_plan)
    output.complain("; ".join(f"{way['way']}: {way['why']}" for way in found["ways"][:3]))
    return Report(facts, "", output.FAILED)


def _best_first(advice: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(advice["ways"], key=lambda way: way["way"] != advice["best"])


def _show_plan(facts: dict[str, Any]) -> None:
    way = facts["plan"]
    columns = ("machine", "layers", "GiB", "why")
    rows = [
        (
            stage["node"],
            "{}-{}".format(*stage["layers"]),
            f"{stage['weight_bytes'] / 2**30:.2f}",
            stage["reason"],
        )
        for stage in way["stages"]
    ]
    output.table(columns, rows)
    for reason in way["reasons"]:
        output.say(reason)


def _row(way: dict[str, Any]) -> tuple[object, ...]:
    needed = way["needed_bytes"]
    return (
        way["way"],
        "yes" if way["open"] else "no",
        None if way["tokens_per_s"] is None else f"{way['tokens_per_s']:.1f}",
        None if way["first_token_s"] is None else f"{way['first_token_s']:.2f}",
        None if needed is None else f"{needed / 2**30:.1f}",
        way["context_tokens"],
        way["usd_per_mtok"],
        way["why"],
    )


def _asked(
    settings: Settings, model: str, compare: str | None, context_tokens: int | None, precision: str | None
) -> dict[str, Any]:
    """Ask the running gateway, which knows all machines; without one, compute for this machine only."""
    if DataFolder(settings.data_dir).read_running() is None:
        output.say("no gateway is running; this estimate is for this machine's CPU only")
        return _alone(settings, model, context_tokens, precision)
    question: dict[str, Any] = {"model": model, "compare": compare}
    question |= {"context_tokens": context_tokens, "precision": precision}
    found: dict[str, Any] = ask(settings, "POST", "/admin/advise", question, timeout_s=_ADVICE_S)
    return found


def _alone(settings: Settings, model: str, context_tokens: int | None, precision: str | None) -> dict[str, Any]:
    from cluster.models.layer_cost import PRECISIONS
    from cluster.nodes.probe import probe_machine
    from cluster.plans.plan import Member
    from cluster.trust.identity import NodeId
    from gateway.advice.advice import advise as decide
    from gateway.advice.facts import advice_facts
    from gateway.advice.service import Wishes, base_question, with_wishes

    known = next((each for each in PRECISIONS if each == precision), None)
    if precision is not None and known is None:
        output.fail(f"--precision {precision}: must be one of {', '.join(PRECISIONS)}", output.WRONG_USAGE)
    question = base_question(settings, model)
    here = Member(NodeId(_HERE), socket.gethostname(), probe_machine())
    question = with_wishes(replace(question, members=(here,)), Wishes(context_tokens, known))
    return advice_facts(decide(question))
