"""`millrace pull`, `run`, `ps`, `stop` and `rm`: models on this machine's disk and in memory."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

import typer

from gateway.cli import output
from gateway.cli.advise import Context, PrecisionName
from gateway.cli.command import Report, with_settings
from gateway.cli.completion import Model, model_names
from gateway.cli.gateway_client import ask, borrowed_key, segment, user_headers
from gateway.cli.load_progress import LOAD_S, load, pulled, until_ready
from gateway.settings import Settings
from runtime.data_folder import DataFolder
from runtime.times import as_seconds

_PATH = "/admin/cluster/models"
_SHOWN = ("model", "where", "state", "precision", "context", "running", "waiting")
_FACTS = (*_SHOWN, "idle_s", "idle_left_s", "note")
_COLUMNS: Mapping[str, output.Cell] = {
    **{name: name for name in _SHOWN},
    "unloads": lambda row: _unloads(row),
    "note": "note",
}


def _show_pulled(facts: dict[str, Any]) -> None:
    had = "" if facts["fetched_bytes"] else ", already downloaded"
    output.say(f"{facts['model']} downloaded: {facts['files']} files, {_gib(facts['bytes'])}{had}")


@with_settings(_show_pulled)
def pull(
    settings: Settings,
    model: Annotated[str, typer.Argument(help="Hugging Face ID: owner/name, optionally @revision.")],
) -> Any:
    """Download a model. Resumes if interrupted. Example: millrace pull Qwen/Qwen3-8B"""
    return pulled(settings, model)


Idle = Annotated[
    str | None,
    typer.Option(
        help="Unload it after this time without requests, e.g. 10m; 0: at once; -1: only for other models."
    ),
]


@with_settings()
def run(
    settings: Settings,
    model: Annotated[str, Model("Pool or cluster model, folder, GGUF file or Hugging Face ID.")],
    name: Annotated[str | None, typer.Option(help="Name by which callers ask for the model.")] = None,
    kind: Annotated[
        Literal["chat", "embedding"] | None, typer.Option(help="Kind of model; default: chat.")
    ] = None,
    precision: PrecisionName = None,
    context_tokens: Context = None,
    priority: Annotated[
        int | None, typer.Option(help="Models of lower priority make room for others first.", min=0)
    ] = None,
    idle: Idle = None,
    pin: Annotated[bool, typer.Option("--pin", help="Keep it loaded, even if others need its memory.")] = False,
    replace: Annotated[
        str | None, model_names("Cluster model whose place and name it takes; that one serves meanwhile.")
    ] = None,
) -> Report:
    """Load a model on a pool server that has it, otherwise into the cluster.

    Example: millrace run Qwen/Qwen3-8B --name coder --idle 10m
    """
    given: dict[str, object] = {
        "name": name,
        "kind": kind,
        "precision": precision,
        "context_tokens": context_tokens,
        "priority": priority,
        "pin": pin or None,
        "replace": replace,
    }
    wishes = {field: value for field, value in given.items() if value is not None}
    idle_s = None if idle is None else _idle_s(idle)
    if idle is not None:
        wishes["idle_s"] = idle_s
    from cluster.models.store import model_name

    # Check first that a gateway is running, so that nothing is downloaded in vain.
    present = ask(settings, "GET", _PATH)
    if not wishes.keys() - {"idle_s"} and (backends := _with_model(settings, model)):
        kept = {} if idle is None else {"keep_alive": -1 if idle_s is None else idle_s}
        _upkeep(settings, {"model": model} | kept)
        names = [each["name"] for each in backends]
        text = f"{model} loaded on {', '.join(names)}, if the server supports it"
        return Report({"model": model, "lane": "pool", "backends": names}, text)
    taken = name or model_name(model)
    if wishes and replace is None and any(each["model"] == taken for each in present):
        remedy = f"choose another --name, or replace it with --replace {taken}"
        field = "--name" if name else "MODEL"
        output.fail(f"{field}: the cluster already has a model {taken!r}; {remedy}", output.REFUSED)
    called = {model, model_name(model)}
    known = next((each["model"] for each in present if called & {each["model"], each["source"]}), None)
    if known is None or wishes:
        known = load(settings, {"model": model} | wishes)
    else:
        ask(settings, "POST", f"{_PATH}/load", {"model": known})
    state = until_ready(settings, known)
    facts = {"model": known, "lane": "cluster", "status": state["status"], "reason": state["reason"]}
    return Report(facts, f"{known} is {state['status']}: {state['reason']}")


def _show_loaded(found: list[dict[str, Any]]) -> None:
    output.table_of(_COLUMNS, found)
    if not found:
        output.say("no models; load one with `millrace run MODEL`")


@with_settings(_show_loaded)
def ps(settings: Settings) -> Any:
    """List loaded models, and the cluster's unloaded ones. Example: millrace ps"""
    rows = [_row_of(model) for model in ask(settings, "GET", _PATH)]
    for backend in ask(settings, "GET", "/admin/pool"):
        loaded = set(backend["resident"])
        for model in backend["models"]:
            if (backend["served_as"].get(model) or model) in loaded:
                pool = {"where": f"pool:{backend['name']}", "state": backend["state"], "note": backend["note"]}
                rows.append(dict.fromkeys(_FACTS) | {"model": model} | pool)
    return rows


@with_settings()
def stop(
    settings: Settings,
    model: Annotated[str, Model("Cluster or pool model.")],
    remove: Annotated[
        bool,
        typer.Option("--remove", help="Also remove it from the cluster; else the next request loads it again."),
    ] = False,
) -> Report:
    """Unload a model when its answers have ended. Example: millrace stop coder"""
    backends = [] if remove else _with_model(settings, model)
    servers = [each["name"] for each in backends if each["kind"] == "ollama"]
    in_cluster = not backends or any(each["model"] == model for each in ask(settings, "GET", _PATH))
    if not in_cluster and not servers:
        names = ", ".join(each["name"] for each in backends)
        output.fail(f"{names} cannot unload models: only Ollama supports this", output.REFUSED)
    if remove:
        ask(settings, "DELETE", f"{_PATH}?model={segment(model)}", timeout_s=LOAD_S)
        return Report({"removed": model}, f"{model} unloaded and removed; `millrace rm MODEL` deletes its files")
    if in_cluster:
        ask(settings, "POST", f"{_PATH}/stop", {"model": model}, timeout_s=LOAD_S)
    if servers:
        _upkeep(settings, {"model": model, "keep_alive": 0})
    stopped_at = [*(["cluster"] if in_cluster else []), *servers]
    return Report({"model": model, "stopped_at": stopped_at}, f"{model} unloaded from {', '.join(stopped_at)}")


@with_settings()
def rm(
    settings: Settings, model: Annotated[str, typer.Argument(help="Hugging Face ID of a downloaded model.")]
) -> Report:
    """Delete a downloaded model from this machine's disk. Example: millrace rm Qwen/Qwen3-8B"""
    from gateway.cli.disk import freed_by_removing

    if DataFolder(settings.data_dir).read_running() is not None:
        for each in ask(settings, "GET", _PATH):
            if model.partition("@")[0] == each["source"]:
                remedy = f"remove it with `millrace stop --remove {each['model']}` first"
                if each["setting"]:
                    remedy = f"the setting {each['setting']} names it: change that and restart the gateway"
                output.fail(f"the cluster's model {each['model']} uses these files; {remedy}", output.REFUSED)
    freed_bytes = freed_by_removing(settings.data_dir, model)
    if freed_bytes is None:
        output.fail(f"{model} was not downloaded to {settings.data_dir}; delete your own folders yourself")
    return Report({"removed": model, "freed_bytes": freed_bytes}, f"{model} deleted: {_gib(freed_bytes)} freed")


def _row_of(model: dict[str, Any]) -> dict[str, Any]:
    """Return a model of the cluster as `ps` lists it."""
    same = ("model", "precision", "running", "waiting", "idle_s", "idle_left_s")
    where = ", ".join(model["machines"])
    return {name: model[name] for name in same} | {
        "where": f"cluster: {where}" if where else "cluster",
        "state": model["status"],
        "context": model["context_tokens"],
        "note": model["reason"],
    }


def _unloads(row: dict[str, Any]) -> str | None:
    if row["state"] != "ready" or row["running"] is None:
        return None
    if row["idle_s"] is None:
        return None
    left_s = row["idle_left_s"]
    return "after its answers" if left_s is None else f"in {timedelta(seconds=round(left_s))}"


def _idle_s(text: str) -> float | None:
    """Return the seconds of a duration as Ollama's users write it; None for never. May end the command."""
    seconds = float(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else as_seconds(text)
    if seconds is None:
        wrong = f"--idle {text}: must be a duration such as 10m, 1h30m or 0, or -1 for never"
        output.fail(wrong, output.WRONG_USAGE)
    return None if seconds < 0 else seconds


def _with_model(settings: Settings, model: str) -> list[dict[str, Any]]:
    return [backend for backend in ask(settings, "GET", "/admin/pool") if model in backend["models"]]


def _upkeep(settings: Settings, wish: dict[str, Any]) -> None:
    """Request loading or unloading as Ollama's clients do."""
    with borrowed_key(settings, "run", "owner", lasts_s=int(LOAD_S)) as key:
        ask(settings, "POST", "/api/generate", wish, headers=user_headers(key), timeout_s=LOAD_S)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"
