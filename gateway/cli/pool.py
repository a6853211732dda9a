"""`millrace pool ...`: inference servers, as the running gateway knows them."""

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from gateway.cli import output
from gateway.cli.completion import Backend
from gateway.cli.gateway_client import ask
from gateway.cli.serving import AsJson, DataDir, settings_from

app = typer.Typer(help="Inference servers that hold whole models.", no_args_is_help=True)

_MODELS_SHOWN = 3

Name = Annotated[str, Backend("Server name, as shown by `millrace pool list`.")]


@app.command("list")
def list_backends(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List servers with state, models and queue. Example: millrace pool list"""
    rows = ask(settings_from(data_dir), "GET", "/admin/pool")
    output.only_data(rows, as_json=as_json)
    columns = ("backend", "kind", "state", "models", "running", "queued", "slots", "note")
    output.table(columns, [_row(row) for row in rows], as_json=False)
    for row in rows:
        for warning in row["warnings"]:
            output.say(f"{row['name']}: {warning}")


def _row(row: dict[str, Any]) -> tuple[object, ...]:
    counts = (row["running"], row["queued"], row["slots"])
    return (row["name"], row["kind"], row["state"], _few(row["models"]), *counts, row["note"])


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _MODELS_SHOWN} more" if len(names) > _MODELS_SHOWN else ""
    return ", ".join(names[:_MODELS_SHOWN]) + more


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Name: letters, digits and . _ @ -")],
    base_url: Annotated[str, typer.Argument(help="OpenAI-compatible address, e.g. http://desk:11434/v1")],
    kind: Annotated[str, typer.Option(help="Kind of server; auto detects it.")] = "auto",
    key_stdin: Annotated[bool, typer.Option("--key-stdin", help="Read the server's API key from stdin.")] = False,
    model: Annotated[list[str] | None, typer.Option(help="Model it serves; repeatable; default: all.")] = None,
    slots: Annotated[int | None, typer.Option(help="Concurrent requests.")] = None,
    weight: Annotated[float | None, typer.Option(help="Share among equally good servers.")] = None,
    clearance: Annotated[str | None, typer.Option(help="Maximum label: public, internal or private.")] = None,
    region: Annotated[str | None, typer.Option(help="Region of the server.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Add a server to the pool. Example: millrace pool add desk http://desk:11434/v1"""
    given = {"slots": slots, "weight": weight, "clearance": clearance, "region": region, "models": model}
    entry: dict[str, Any] = {"name": name, "base_url": base_url, "kind": kind}
    entry |= {field: value for field, value in given.items() if value is not None}
    if key_stdin:
        entry["api_key"] = typer.get_text_stream("stdin").readline().strip()
    added = ask(settings_from(data_dir), "POST", "/admin/pool/backends", entry)
    output.only_data(added, as_json=as_json)
    has = _few(added["models"]) or "no models yet"
    output.say(f"{name} ({added['kind']}) is {added['state']}: {added['note'] or has}")


@app.command("remove")
def remove(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Remove an added server. Example: millrace pool remove desk"""
    done = _change(data_dir, name, "remove")
    output.tell(done, f"{name} was removed from the pool; running requests continue.", as_json=as_json)


@app.command("drain")
def drain(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Stop sending new requests to a server. Example: millrace pool drain desk"""
    done = _change(data_dir, name, "drain")
    output.tell(done, f"{name} gets no new requests until `millrace pool undrain {name}`.", as_json=as_json)


@app.command("undrain")
def undrain(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Send requests to a drained server again. Example: millrace pool undrain desk"""
    done = _change(data_dir, name, "drain?undo=true")
    output.tell(done, f"{name} accepts requests again: {done['state']}.", as_json=as_json)


def _change(data_dir: Path | None, name: str, what: str) -> Any:
    return ask(settings_from(data_dir), "POST", f"/admin/pool/backends/{quote(name, safe='')}/{what}")


@app.command("aliases")
def list_aliases(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List aliases of models. Example: millrace pool aliases"""
    rows = ask(settings_from(data_dir), "GET", "/admin/aliases")
    output.only_data(rows, as_json=as_json)
    output.table(
        ("alias", "models", "origin"),
        [(row["alias"], ", ".join(row["models"]), row["origin"]) for row in rows],
        as_json=False,
    )


@app.command("alias")
def set_alias(
    alias: Annotated[str, typer.Argument(help="Alias that callers can use.")],
    models: Annotated[list[str], typer.Argument(help="Models; each server uses the first one it has.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Set an alias for models of any lane. Example: millrace pool alias gpt-4o-mini qwen3:8b llama3.2"""
    done = ask(settings_from(data_dir), "PUT", "/admin/aliases", {"alias": alias, "models": models})
    output.tell(done, f"{alias} routes to {_few(done['models'])}", as_json=as_json)


@app.command("unalias")
def remove_alias(
    alias: Annotated[str, typer.Argument(help="Alias set by `millrace pool alias NAME MODEL` or in the console.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Remove an alias. Example: millrace pool unalias gpt-4o-mini"""
    done = ask(settings_from(data_dir), "DELETE", f"/admin/aliases?alias={quote(alias, safe='')}")
    output.tell(done, f"{alias} removed; the settings may still define it.", as_json=as_json)


@app.command("scan")
def scan(
    hosts: Annotated[
        list[str] | None, typer.Argument(help="Hosts, HOST:PORT, or networks such as 192.168.1.0/24.")
    ] = None,
    port: Annotated[
        list[int] | None, typer.Option(help="Port to try; repeatable; default: the usual ports.")
    ] = None,
    mdns: Annotated[bool, typer.Option("--mdns", help="Include mDNS announcements in this network.")] = False,
    public: Annotated[bool, typer.Option("--public", help="Allow hosts outside private networks.")] = False,
    add: Annotated[bool, typer.Option("--add", help="Add the servers found.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Scan hosts for inference servers. Example: millrace pool scan 192.168.1.20"""
    if not hosts and not mdns:
        output.fail("name the hosts to scan, or use --mdns", output.WRONG_USAGE)
    question = {"hosts": hosts or [], "ports": port or [], "mdns": mdns, "public": public, "add": add}
    answer = ask(settings_from(data_dir), "POST", "/admin/pool/scan", question)
    output.only_data(answer, as_json=as_json)
    output.say(f"{answer['looked_at']} addresses and ports scanned, {len(answer['found'])} servers found")
    for found in answer["found"]:
        _show(found)


def _show(server: dict[str, Any]) -> None:
    output.say(
        f"{server['title']} at {server['base_url']}: {server['note'] or _few(server['models']) or 'no models'}"
    )
    if server["in_pool_as"]:
        output.say(f"  {'added' if server['added'] else 'in the pool'} as {server['in_pool_as']}")
        return
    entry = server["entry"]
    output.say(f"  millrace pool add {entry['name']} {entry['base_url']} --kind {server['kind']}")
