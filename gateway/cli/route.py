"""`millrace route`: simulate where a request would go now, and why."""

import sys
from typing import Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.completion import model_names
from gateway.cli.gateway_client import ask
from gateway.cli.serving import AsJson, DataDir, settings_from
from gateway.settings.base import LaneName, Privacy

app = typer.Typer(help="Routing decisions.", no_args_is_help=True)

_STDIN = "-"


@app.callback()
def route() -> None:
    """Routing decisions."""


@app.command("explain")
def explain(
    prompt: Annotated[str, typer.Argument(help="Prompt; - reads it from stdin.")],
    model: Annotated[str, model_names("Model.")],
    key: Annotated[str | None, typer.Option(help="Key ID or prefix; default: a new key.")] = None,
    privacy: Annotated[Privacy | None, typer.Option(help="Privacy label of the request.")] = None,
    lane: Annotated[LaneName | None, typer.Option(help="Lane that the request asks for.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Maximum length of the answer, in tokens.", min=1)] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Simulate routing of a request. Example: millrace route explain "Hi" --model demo"""
    text = sys.stdin.read() if prompt == _STDIN else prompt
    request: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": text}], "stream": True}
    if max_tokens:
        request["max_tokens"] = max_tokens
    if extras := {name: value for name, value in (("privacy", privacy), ("lane", lane)) if value}:
        request["millrace"] = extras
    question = {"request": request} | ({"key": key} if key else {})
    found = ask(settings_from(data_dir), "POST", "/admin/route/explain", question)
    output.only_data(found, as_json=as_json)
    output.say(found["reason"])
    columns = (
        "candidate",
        "TTFT s",
        "queue s",
        "load s",
        "TPOT s",
        "tokens",
        "USD",
        "error rate",
        "weighted nano-USD",
    )
    output.table(columns, [_candidate(row) for row in found["candidates"]], as_json=False)
    for row in found["rejected"]:
        output.say(f"{row['lane']} excluded by '{row['rule']}': {row['reason']} ({row['remedy']})")


def _candidate(row: dict[str, Any]) -> tuple[object, ...]:
    prompt = f"{row['prompt_tokens']} ({row['cached_tokens']} cached) + {row['output_tokens']}"
    return (
        f"{row['lane']} {row['model']}",
        row["first_token_s"],
        row["wait_s"],
        row["load_s"],
        row["token_s"],
        prompt,
        row["predicted_usd"],
        row["failure_share"],
        row["cost_nano"],
    )
