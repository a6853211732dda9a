"""`millrace pool ...`: servers of whole models, as the running gateway knows them."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from gateway.cli import output
from gateway.cli.completing import Backend
from gateway.cli.running import ask
from gateway.cli.serving import AsJson, DataDir, settings_from

app = typer.Typer(help="Servers of whole models on single machines.", no_args_is_help=True)

_MODELS_SHOWN = 3

Name = Annotated[str, Backend("The backend's name, as `millrace pool list` shows it.")]


@app.command("list")
def list_backends(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show backends: state, models, queue. Example: millrace pool list"""
    rows = ask(settings_from(data_dir), "GET", "/admin/pool")
    if as_json:
        output.data(rows)
        return
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
    name: Annotated[str, typer.Argument(help="How to call it: letters, digits and . _ @ -")],
    base_url: Annotated[str, typer.Argument(help="Its OpenAI-compatible address, such as http://desk:11434/v1")],
    kind: Annotated[str, typer.Option(help="Which server it is; recognised when auto.")] = "auto",
    key_stdin: Annotated[bool, typer.Option("--key-stdin", help="Read the key it asks for from stdin.")] = False,
    model: Annotated[
        list[str] | None, typer.Option(help="A model it serves; again for more. All, if none.")
    ] = None,
    slots: Annotated[int | None, typer.Option(help="Requests it works on at once.")] = None,
    weight: Annotated[float | None, typer.Option(help="Share among backends that are equally good.")] = None,
    clearance: Annotated[str | None, typer.Option(help="public, internal or private.")] = None,
    region: Annotated[str | None, typer.Option(help="Where it stands.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Take a server into the pool, for good. Example: millrace pool add desk http://desk:11434/v1"""
    given = {"slots": slots, "weight": weight, "clearance": clearance, "region": region, "models": model}
    entry: dict[str, Any] = {"name": name, "base_url": base_url, "kind": kind}
    entry |= {field: value for field, value in given.items() if value is not None}
    if key_stdin:
        entry["api_key"] = typer.get_text_stream("stdin").readline().strip()
    added = ask(settings_from(data_dir), "POST", "/admin/pool/backends", entry)
    if as_json:
        output.data(added)
        return
    has = _few(added["models"]) or "no models yet"
    output.say(f"{name} ({added['kind']}) is {added['state']}: {added['note'] or has}")


@app.command("remove")
def remove(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Take a server out that was added. Example: millrace pool remove desk"""
    done = ask(settings_from(data_dir), "POST", f"/admin/pool/backends/{quote(name, safe='')}/remove")
    output.tell(done, f"{name} is out of the pool; requests that run there go on.", as_json=as_json)


@app.command("drain")
def drain(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Send a server nothing new. Example: millrace pool drain desk"""
    done = ask(settings_from(data_dir), "POST", f"/admin/pool/backends/{quote(name, safe='')}/drain")
    output.tell(done, f"{name} gets no new requests, until `millrace pool undrain {name}`.", as_json=as_json)


@app.command("undrain")
def undrain(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Let a server serve again. Example: millrace pool undrain desk"""
    done = ask(settings_from(data_dir), "POST", f"/admin/pool/backends/{quote(name, safe='')}/drain?undo=true")
    output.tell(done, f"{name} serves again: {done['state']}.", as_json=as_json)


@app.command("aliases")
def list_aliases(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show further names of models. Example: millrace pool aliases"""
    rows = ask(settings_from(data_dir), "GET", "/admin/aliases")
    if as_json:
        output.data(rows)
        return
    output.table(
        ("alias", "models", "origin"),
        [(row["alias"], ", ".join(row["models"]), row["origin"]) for row in rows],
        as_json=False,
    )


@app.command("alias")
def set_alias(
    alias: Annotated[str, typer.Argument(help="The name that callers may use.")],
    models: Annotated[list[str], typer.Argument(help="Models; each backend gives the first that it has.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Give models of any lane a further name. Example: millrace pool alias gpt-4o-mini qwen3:8b llama3.2"""
    done = ask(settings_from(data_dir), "PUT", "/admin/aliases", {"alias": alias, "models": models})
    output.tell(done, f"{alias} stands for {_few(done['models'])}", as_json=as_json)


@app.command("unalias")
def remove_alias(
    alias: Annotated[str, typer.Argument(help="A name from `millrace pool alias NAME MODEL` or the console.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Take a further name away again. Example: millrace pool unalias gpt-4o-mini"""
    done = ask(settings_from(data_dir), "DELETE", f"/admin/aliases?alias={quote(alias, safe='')}")
    output.tell(done, f"{alias} stands for what the settings say, if anything.", as_json=as_json)


@app.command("scan")
def scan(
    hosts: Annotated[
        list[str] | None, typer.Argument(help="Hosts, HOST:PORT, or networks as 192.168.1.0/24.")
    ] = None,
    port: Annotated[
        list[int] | None, typer.Option(help="A port to try; again for more. The usual ones, if none.")
    ] = None,
    mdns: Annotated[
        bool, typer.Option("--mdns", help="Look at what announces itself in this network, too.")
    ] = False,
    public: Annotated[bool, typer.Option("--public", help="Admit hosts outside of private networks.")] = False,
    add: Annotated[bool, typer.Option("--add", help="Take in what is found.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Look for servers of models on these hosts. Example: millrace pool scan 192.168.1.20"""
    if not hosts and not mdns:
        output.fail("name the hosts to look at, or use --mdns", output.WRONG_USAGE)
    question = {"hosts": hosts or [], "ports": port or [], "mdns": mdns, "public": public, "add": add}
    answer = ask(settings_from(data_dir), "POST", "/admin/pool/scan", question)
    if as_json:
        output.data(answer)
        return
    output.say(f"{answer['looked_at']} addresses and ports looked at, {len(answer['found'])} servers found")
    for found in answer["found"]:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    output.say(f"{found['title']} at {found['base_url']}: {found['note'] or _few(found['models']) or 'no models'}")
    if found["in_pool_as"]:
        output.say(f"  {'added' if found['added'] else 'in the pool'} as {found['in_pool_as']}")
        return
    entry = found["entry"]
    output.say(f"  millrace pool add {entry['name']} {entry['base_url']} --kind {found['kind']}")
