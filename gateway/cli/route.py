"""`millrace route`: simulate where a request would go now, and why."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.command import Group
from gateway.cli.completion import model_names
from gateway.cli.gateway_client import ask
from gateway.settings import Settings
from gateway.settings.base import LaneName, Privacy

app = Group("Routing decisions.")

_STDIN = "-"


@app.callback()
def route() -> None:
    """Routing decisions."""


_COLUMNS: Mapping[str, output.Cell] = {
    "candidate": lambda row: f"{row['lane']} {row['model']}",
    "TTFT s": "first_token_s",
    "queue s": "wait_s",
    "load s": "load_s",
    "TPOT s": "token_s",
    "tokens": lambda row: f"{row['prompt_tokens']} ({row['cached_tokens']} cached) + {row['output_tokens']}",
    "USD": "predicted_usd",
    "error rate": "failure_share",
    "weighted nano-USD": "cost_nano",
}


def _show(found: dict[str, Any]) -> None:
    output.say(found["reason"])
    output.table_of(_COLUMNS, found["candidates"])
    for row in found["rejected"]:
        output.say(f"{row['lane']} excluded by '{row['rule']}': {row['reason']} ({row['remedy']})")


@app.with_settings("explain", _show)
def explain(
    settings: Settings,
    prompt: Annotated[str, typer.Argument(help="Prompt; - reads it from stdin.")],
    model: Annotated[str, model_names("Model.")],
    key: Annotated[str | None, typer.Option(help="Key ID or prefix; default: a new key.")] = None,
    privacy: Annotated[Privacy | None, typer.Option(help="Privacy label of the request.")] = None,
    lane: Annotated[LaneName | None, typer.Option(help="Lane that the request asks for.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Maximum length of the answer, in tokens.", min=1)] = None,
) -> Any:
    """Simulate routing of a request. Example: millrace route explain "Hi" --model demo"""
    text = sys.stdin.read() if prompt == _STDIN else prompt
    request: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": text}], "stream": True}
    if max_tokens:
        request["max_tokens"] = max_tokens
    if extras := {name: value for name, value in (("privacy", privacy), ("lane", lane)) if value}:
        request["millrace"] = extras
    question = {"request": request} | ({"key": key} if key else {})
    return ask(settings, "POST", "/admin/route/explain", question)
