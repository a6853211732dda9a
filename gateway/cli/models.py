"""`millrace pull`, `run`, `ps`, `stop` and `rm`: models on this machine's disk, and in memory."""

from typing import Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.completing import Model
from gateway.cli.loading import LOAD_S, load, pulled, until_ready
from gateway.cli.running import as_person, ask, borrowed_key
from gateway.cli.serving import AsJson, DataDir, settings_from
from gateway.data_folder import DataFolder
from gateway.settings import Settings

_COLUMNS = ("model", "where", "state", "precision", "context", "note")


def pull(
    model: Annotated[str, typer.Argument(help="A Hugging Face id: owner/name, perhaps @revision.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a model to this machine's disk; one that was stopped goes on. Example: millrace pull Qwen/Qwen3-8B"""
    facts = pulled(settings_from(data_dir), model)
    if as_json:
        output.data(facts)
        return
    had = "" if facts["fetched_bytes"] else ", all of it here before"
    output.say(f"{model} is here: {facts['files']} files, {_gib(facts['bytes'])}{had}")


def run(
    model: Annotated[str, Model("A model of the pool, a folder, a GGUF file or a Hugging Face id.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Have a model loaded: by its pool backend, else by the cluster. Example: millrace run Qwen/Qwen3-8B"""
    settings = settings_from(data_dir)
    # First, for nothing is pulled in vain where no gateway runs.
    cluster, backends = ask(settings, "GET", "/admin/cluster"), _with_model(settings, model)
    if backends:
        _upkeep(settings, {"model": model})
        facts = {"model": model, "lane": "pool", "backends": [each["name"] for each in backends]}
        output.tell(
            facts, f"{model} is loaded where {', '.join(facts['backends'])} loads when told to", as_json=as_json
        )
        return
    if cluster["model"] is None or cluster["status"] == "failed":
        name = load(settings, model)
    else:
        name = cluster["model"]
        if _name(model) not in (name, cluster["model_source"]):
            output.fail(
                f"the cluster serves {cluster['model']}, and one model for its life: stop the gateway and "
                f"start it with `millrace up --model {model}`, or have a pool backend serve it",
                output.REFUSED,
            )
    cluster = until_ready(settings)
    facts = {"model": name, "lane": "cluster", "status": cluster["status"], "reason": cluster["reason"]}
    output.tell(facts, f"{name} is {cluster['status']}: {cluster['reason']}", as_json=as_json)


def ps(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show which models are in memory, where, and what they are like. Example: millrace ps"""
    settings = settings_from(data_dir)
    cluster = ask(settings, "GET", "/admin/cluster")
    rows = [*_of_cluster(cluster)]
    for backend in ask(settings, "GET", "/admin/pool"):
        loaded = set(backend["resident"])
        names = [n for n in backend["models"] if (backend["served_as"].get(n) or n) in loaded]
        where, state = f"pool:{backend['name']}", backend["state"]
        rows += [(name, where, state, None, None, backend["note"]) for name in names]
    output.table(_COLUMNS, rows, as_json=as_json)
    if not rows and not as_json:
        output.say("no model is in memory; `millrace run MODEL` loads one")


def stop(
    model: Annotated[str, Model("A model of the pool.")], data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Have pool backends put a model out of memory. Example: millrace stop qwen3:8b"""
    settings = settings_from(data_dir)
    backends = _with_model(settings, model)
    if not backends:
        if ask(settings, "GET", "/admin/cluster")["model"] == model:
            output.fail(
                f"{model} is the cluster's own model, which stays for the gateway's life; Ctrl-C ends the gateway",
                output.REFUSED,
            )
        output.fail(f"no backend of the pool has {model}; `millrace ps` shows what is loaded")
    told = [each["name"] for each in backends if each["kind"] == "ollama"]
    if not told:
        names = ", ".join(each["name"] for each in backends)
        output.fail(f"{names} cannot be told to put a model away: only Ollama can", output.REFUSED)
    _upkeep(settings, {"model": model, "keep_alive": 0})
    output.tell(
        {"model": model, "stopped_at": told}, f"{model} is out of memory at {', '.join(told)}", as_json=as_json
    )


def rm(
    model: Annotated[str, typer.Argument(help="A Hugging Face id that was pulled.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Remove a pulled model from this machine's disk. Example: millrace rm Qwen/Qwen3-8B"""
    from gateway.cli.disk import freed_by_removing

    settings = settings_from(data_dir)
    if DataFolder(settings.data_dir).read_running() is not None:
        cluster = ask(settings, "GET", "/admin/cluster")
        if model.partition("@")[0] in (cluster["model_source"], cluster["embedding_model"]):
            output.fail(f"{model} is being served; stop the gateway first", output.REFUSED)
    freed_bytes = freed_by_removing(settings.data_dir, model)
    if freed_bytes is None:
        output.fail(f"{model} was not pulled to {settings.data_dir}; a folder of your own is yours to remove")
    output.tell(
        {"removed": model, "freed_bytes": freed_bytes},
        f"{model} is removed: {_gib(freed_bytes)} free",
        as_json=as_json,
    )


def _of_cluster(cluster: dict[str, Any]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    if cluster["model"]:
        machines = ", ".join(node["node"] for node in cluster["nodes"] if node["layers"])
        where = f"cluster: {machines}" if machines else "cluster"
        rows.append(
            (
                cluster["model"],
                where,
                cluster["status"],
                cluster["precision"],
                cluster["context_tokens"],
                cluster["reason"],
            )
        )
    if cluster["embedding_model"]:
        status, reason = cluster["embedder_status"]
        rows.append((cluster["embedding_model"], "cluster: embeddings", status, "fp32", None, reason))
    return rows


def _with_model(settings: Settings, model: str) -> list[dict[str, Any]]:
    return [backend for backend in ask(settings, "GET", "/admin/pool") if model in backend["models"]]


def _upkeep(settings: Settings, wish: dict[str, Any]) -> None:
    """As Ollama's clients ask to have a model loaded, or put away."""
    with borrowed_key(settings, "run", "owner", lasts_s=int(LOAD_S)) as key:
        ask(settings, "POST", "/api/generate", wish, headers=as_person(key), timeout_s=LOAD_S)


def _name(model: str) -> str:
    from cluster.models.store import model_name

    return model_name(model)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"
