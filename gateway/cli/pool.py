"""`millrace pool ...`: inference servers, as the running gateway knows them."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.command import Group
from gateway.cli.completion import Backend
from gateway.cli.gateway_client import ask, segment
from gateway.settings import Settings

app = Group("Inference servers that hold whole models.")

_MODELS_SHOWN = 3

Name = Annotated[str, Backend("Server name, as shown by `millrace pool list`.")]


_COLUMNS: Mapping[str, output.Cell] = {
    "backend": "name",
    "kind": "kind",
    "state": "state",
    "models": lambda row: _few(row["models"]),
    "running": "running",
    "queued": "queued",
    "slots": "slots",
    "note": "note",
}


def _show_backends(rows: list[dict[str, Any]]) -> None:
    output.table_of(_COLUMNS, rows)
    for row in rows:
        for warning in row["warnings"]:
            output.say(f"{row['name']}: {warning}")


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _MODELS_SHOWN} more" if len(names) > _MODELS_SHOWN else ""
    return ", ".join(names[:_MODELS_SHOWN]) + more


@app.with_settings("list", _show_backends)
def list_backends(settings: Settings) -> Any:
    """List servers with state, models and queue. Example: millrace pool list"""
    return ask(settings, "GET", "/admin/pool")


def _show_added(added: dict[str, Any]) -> None:
    has = _few(added["models"]) or "no models yet"
    output.say(f"{added['name']} ({added['kind']}) is {added['state']}: {added['note'] or has}")


@app.with_settings("add", _show_added)
def add(
    settings: Settings,
    name: Annotated[str, typer.Argument(help="Name: letters, digits and . _ @ -")],
    base_url: Annotated[str, typer.Argument(help="OpenAI-compatible address, e.g. http://desk:11434/v1")],
    kind: Annotated[str, typer.Option(help="Kind of server; auto detects it.")] = "auto",
    key_stdin: Annotated[bool, typer.Option("--key-stdin", help="Read the server's API key from stdin.")] = False,
    model: Annotated[list[str] | None, typer.Option(help="Model it serves; repeatable; default: all.")] = None,
    slots: Annotated[int | None, typer.Option(help="Concurrent requests.")] = None,
    weight: Annotated[float | None, typer.Option(help="Share among equally good servers.")] = None,
    clearance: Annotated[str | None, typer.Option(help="Maximum label: public, internal or private.")] = None,
    region: Annotated[str | None, typer.Option(help="Region of the server.")] = None,
) -> Any:
    """Add a server to the pool. Example: millrace pool add desk http://desk:11434/v1"""
    given = {"slots": slots, "weight": weight, "clearance": clearance, "region": region, "models": model}
    entry: dict[str, Any] = {"name": name, "base_url": base_url, "kind": kind}
    entry |= {field: value for field, value in given.items() if value is not None}
    if key_stdin:
        entry["api_key"] = typer.get_text_stream("stdin").readline().strip()
    return ask(settings, "POST", "/admin/pool/backends", entry)


@app.with_settings("remove", "{name} was removed from the pool; running requests continue.")
def remove(settings: Settings, name: Name) -> Any:
    """Remove an added server. Example: millrace pool remove desk"""
    return _change(settings, name, "remove")


@app.with_settings("drain", "{name} gets no new requests until `millrace pool undrain {name}`.")
def drain(settings: Settings, name: Name) -> Any:
    """Stop sending new requests to a server. Example: millrace pool drain desk"""
    return _change(settings, name, "drain")


@app.with_settings("undrain", "{name} accepts requests again: {state}.")
def undrain(settings: Settings, name: Name) -> Any:
    """Send requests to a drained server again. Example: millrace pool undrain desk"""
    return _change(settings, name, "drain?undo=true")


def _change(settings: Settings, name: str, what: str) -> Any:
    return ask(settings, "POST", f"/admin/pool/backends/{segment(name)}/{what}")


@app.with_settings(
    "aliases", {"alias": "alias", "models": lambda row: ", ".join(row["models"]), "origin": "origin"}
)
def list_aliases(settings: Settings) -> Any:
    """List aliases of models. Example: millrace pool aliases"""
    return ask(settings, "GET", "/admin/aliases")


@app.with_settings("alias", lambda done: output.say(f"{done['alias']} routes to {_few(done['models'])}"))
def set_alias(
    settings: Settings,
    alias: Annotated[str, typer.Argument(help="Alias that callers can use.")],
    models: Annotated[list[str], typer.Argument(help="Models; each server uses the first one it has.")],
) -> Any:
    """Set an alias for models of any lane. Example: millrace pool alias gpt-4o-mini qwen3:8b llama3.2"""
    return ask(settings, "PUT", "/admin/aliases", {"alias": alias, "models": models})


@app.with_settings("unalias", "{alias} removed; the settings may still define it.")
def remove_alias(
    settings: Settings,
    alias: Annotated[str, typer.Argument(help="Alias set by `millrace pool alias NAME MODEL` or in the console.")],
) -> Any:
    """Remove an alias. Example: millrace pool unalias gpt-4o-mini"""
    return ask(settings, "DELETE", f"/admin/aliases?alias={segment(alias)}")


def _show_scan(answer: dict[str, Any]) -> None:
    output.say(f"{answer['looked_at']} addresses and ports scanned, {len(answer['found'])} servers found")
    for found in answer["found"]:
        _show(found)


@app.with_settings("scan", _show_scan)
def scan(
    settings: Settings,
    hosts: Annotated[
        list[str] | None, typer.Argument(help="Hosts, HOST:PORT, or networks such as 192.168.1.0/24.")
    ] = None,
    port: Annotated[
        list[int] | None, typer.Option(help="Port to try; repeatable; default: the usual ports.")
    ] = None,
    mdns: Annotated[bool, typer.Option("--mdns", help="Include mDNS announcements in this network.")] = False,
    public: Annotated[bool, typer.Option("--public", help="Allow hosts outside private networks.")] = False,
    add: Annotated[bool, typer.Option("--add", help="Add the servers found.")] = False,
) -> Any:
    """Scan hosts for inference servers. Example: millrace pool scan 192.168.1.20"""
    if not hosts and not mdns:
        output.fail("name the hosts to scan, or use --mdns", output.WRONG_USAGE)
    question = {"hosts": hosts or [], "ports": port or [], "mdns": mdns, "public": public, "add": add}
    return ask(settings, "POST", "/admin/pool/scan", question)


def _show(server: dict[str, Any]) -> None:
    output.say(
        f"{server['title']} at {server['base_url']}: {server['note'] or _few(server['models']) or 'no models'}"
    )
    if server["in_pool_as"]:
        output.say(f"  {'added' if server['added'] else 'in the pool'} as {server['in_pool_as']}")
        return
    entry = server["entry"]
    output.say(f"  millrace pool add {entry['name']} {entry['base_url']} --kind {server['kind']}")
