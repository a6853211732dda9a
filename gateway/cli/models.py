"""`millrace pull`, `run`, `ps`, `stop` and `rm`: models on this machine's disk and in memory."""

from typing import Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.command import Report, with_settings
from gateway.cli.completion import Model
from gateway.cli.gateway_client import ask, borrowed_key, user_headers
from gateway.cli.load_progress import LOAD_S, load, pulled, until_ready
from gateway.settings import Settings
from runtime.data_folder import DataFolder

_COLUMNS = ("model", "where", "state", "precision", "context", "note")


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


@with_settings()
def run(
    settings: Settings, model: Annotated[str, Model("Pool model, folder, GGUF file or Hugging Face ID.")]
) -> Report:
    """Load a model on a pool server that has it, otherwise into the cluster. Example: millrace run Qwen/Qwen3-8B"""
    # Check first that a gateway is running, so that nothing is downloaded in vain.
    cluster, backends = ask(settings, "GET", "/admin/cluster"), _with_model(settings, model)
    if backends:
        _upkeep(settings, {"model": model})
        names = [each["name"] for each in backends]
        text = f"{model} loaded on {', '.join(names)}, if the server supports it"
        return Report({"model": model, "lane": "pool", "backends": names}, text)
    if cluster["model"] is None or cluster["status"] == "failed":
        name = load(settings, model)
    else:
        name = cluster["model"]
        if _name(model) not in (name, cluster["model_source"]):
            output.fail(
                f'The cluster already serves "{cluster["model"]}" and cannot switch while running. Stop the '
                f"gateway and start it with `millrace up --model {model}`, or use a pool server",
                output.REFUSED,
            )
    cluster = until_ready(settings)
    facts = {"model": name, "lane": "cluster", "status": cluster["status"], "reason": cluster["reason"]}
    return Report(facts, f"{name} is {cluster['status']}: {cluster['reason']}")


def _show_loaded(found: list[dict[str, Any]]) -> None:
    output.table(_COLUMNS, [tuple(each.values()) for each in found])
    if not found:
        output.say("no models loaded; load one with `millrace run MODEL`")


@with_settings(_show_loaded)
def ps(settings: Settings) -> Any:
    """List loaded models. Example: millrace ps"""
    cluster = ask(settings, "GET", "/admin/cluster")
    rows = [*_of_cluster(cluster)]
    for backend in ask(settings, "GET", "/admin/pool"):
        loaded = set(backend["resident"])
        names = [n for n in backend["models"] if (backend["served_as"].get(n) or n) in loaded]
        where, state = f"pool:{backend['name']}", backend["state"]
        rows += [(name, where, state, None, None, backend["note"]) for name in names]
    return output.as_dicts(_COLUMNS, rows)


@with_settings()
def stop(settings: Settings, model: Annotated[str, Model("Pool model.")]) -> Report:
    """Unload a model from pool servers. Example: millrace stop qwen3:8b"""
    backends = _with_model(settings, model)
    if not backends:
        if ask(settings, "GET", "/admin/cluster")["model"] == model:
            output.fail(
                f"{model} is the cluster's model and stays loaded until the gateway stops; press Ctrl-C there",
                output.REFUSED,
            )
        output.fail(f"no pool server has {model}; `millrace ps` lists loaded models")
    servers = [each["name"] for each in backends if each["kind"] == "ollama"]
    if not servers:
        names = ", ".join(each["name"] for each in backends)
        output.fail(f"{names} cannot unload models: only Ollama supports this", output.REFUSED)
    _upkeep(settings, {"model": model, "keep_alive": 0})
    return Report({"model": model, "stopped_at": servers}, f"{model} unloaded from {', '.join(servers)}")


@with_settings()
def rm(
    settings: Settings, model: Annotated[str, typer.Argument(help="Hugging Face ID of a downloaded model.")]
) -> Report:
    """Delete a downloaded model from this machine's disk. Example: millrace rm Qwen/Qwen3-8B"""
    from gateway.cli.disk import freed_by_removing

    if DataFolder(settings.data_dir).read_running() is not None:
        cluster = ask(settings, "GET", "/admin/cluster")
        if model.partition("@")[0] in [used["source"] for used in cluster["deployments"]]:
            output.fail(f"{model} is in use; stop the gateway first", output.REFUSED)
    freed_bytes = freed_by_removing(settings.data_dir, model)
    if freed_bytes is None:
        output.fail(f"{model} was not downloaded to {settings.data_dir}; delete your own folders yourself")
    return Report({"removed": model, "freed_bytes": freed_bytes}, f"{model} deleted: {_gib(freed_bytes)} freed")


def _of_cluster(cluster: dict[str, Any]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for model in cluster["deployments"]:
        where = "cluster: " + ", ".join(model["machines"]) if model["machines"] else "cluster"
        rows.append(
            (
                model["model"],
                where,
                model["status"],
                model["precision"],
                model["context_tokens"],
                model["reason"],
            )
        )
    return rows


def _with_model(settings: Settings, model: str) -> list[dict[str, Any]]:
    return [backend for backend in ask(settings, "GET", "/admin/pool") if model in backend["models"]]


def _upkeep(settings: Settings, wish: dict[str, Any]) -> None:
    """Request loading or unloading as Ollama's clients do."""
    with borrowed_key(settings, "run", "owner", lasts_s=int(LOAD_S)) as key:
        ask(settings, "POST", "/api/generate", wish, headers=user_headers(key), timeout_s=LOAD_S)


def _name(model: str) -> str:
    from cluster.models.store import model_name

    return model_name(model)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"
