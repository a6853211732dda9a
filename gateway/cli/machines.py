"""`millrace join`, `nodes`, `machines` and `token`: add and remove machines of the cluster."""

import asyncio
import contextlib
import os
import re
import signal
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.command import AsJson, DataDir, Group, Report, with_settings
from gateway.cli.completion import Machine
from gateway.cli.gateway_client import ask, segment
from gateway.cli.leave import only_node
from gateway.cli.serving import warn_of_open_folder
from gateway.settings import Settings
from runtime.data_folder import DataFolder
from runtime.settings import SettingsInvalid

if TYPE_CHECKING:
    from cluster.nodes.node_options import NodeOptions

token = Group("Join tokens, one per new machine.")
app = Group(
    "Machines of the cluster. Example: millrace machines list", no_args_is_help=False, invoke_without_command=True
)

Name = Annotated[str, Machine("Machine name or ID.")]

DEFAULT_PORT = 8401
_NAME_FILE = "name"
_STDIN = "-"
_TOKEN_MARK = "mrj."  # noqa: S105 - prefix of join tokens
_BARE_V6 = re.compile(r"(?P<host>[^:\[\]]*:[^\[\]]*:[^\[\]]*)")
_WITH_PORT = re.compile(r"(?P<host>\[[^\[\]]+\]|[^:\[\]]+)(?::(?P<port>[0-9]{1,5}))?")


def _show_token(made: dict[str, Any]) -> None:
    from cluster.trust.addresses import Target, is_reachable
    from gateway.admin.join_command import join_command

    output.say("Only add machines that you trust: they can read the answers they help compute. Run there:")
    typer.echo(join_command(Target(made["host"], made["port"]), made["token"]))
    if not is_reachable(made["host"]):
        output.say(
            "This gateway listens on this machine only. For other machines, start it with --host 0.0.0.0 "
            "(the cluster port accepts mutual TLS only)."
        )


@token.with_settings("create", _show_token)
def create_token(settings: Settings) -> Any:
    """Create a single-use join token that expires after 15 minutes. Example: millrace token create"""
    return ask(settings, "POST", "/admin/tokens")


@with_settings()
def join(
    settings: Settings,
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOKEN|HOST[:PORT]]",
            help="Join token, or the gateway's host and cluster port; not needed after the first join.",
        ),
    ] = None,
    controller: Annotated[
        str | None,
        typer.Option(help="The gateway's machine: HOST[:PORT], [V6]:PORT; default: found by mDNS."),
    ] = None,
    token: Annotated[
        str,
        typer.Option(help="Join token, needed for the first join; - reads it from stdin.", envvar="JOIN_TOKEN"),
    ] = "",
    name: Annotated[str | None, typer.Option(help="Name of this machine in the cluster.")] = None,
    threads: Annotated[int | None, typer.Option(help="Number of CPU threads.", min=1)] = None,
    *,
    as_json: bool,
) -> None:
    """Make this machine a node and serve until Ctrl-C. Example: millrace join TOKEN"""
    host, token = where_and_token(where, controller, token)
    from cluster.errors import ClusterError, LinkLost
    from cluster.nodes.node_options import NodeOptions
    from cluster.nodes.probe import compute_threads
    from cluster.trust.addresses import Target
    from runtime.files import replace_file
    from runtime.logs import configure_logs

    configure_logs(settings.log.style)
    folder = DataFolder(settings.data_dir)
    options = NodeOptions(
        name=name or _kept_name(folder.node) or socket.gethostname(),
        folder=str(folder.node),
        controller=Target(*split_address(host)) if host else None,
        discovery=settings.cluster.discovery,
        token=_from_stdin() if token == _STDIN else token,
        threads=threads or compute_threads(),
        kv_disk_gb=settings.cluster.kv_disk_gb,
        log_style=settings.log.style,
    )
    try:
        folder.prepare()
        warn_of_open_folder(folder)
        with only_node(folder.node):
            if name:
                replace_file(folder.node / _NAME_FILE, name)
            if as_json:
                output.data({"node": options.name, "folder": options.folder, "pid": os.getpid()})
            asyncio.run(_serve_node(options))
    except (SettingsInvalid, OSError) as error:
        output.fail(str(error))
    except LinkLost as error:
        output.fail(str(error), output.UNREACHABLE)
    except ClusterError as error:
        output.fail(str(error), output.REFUSED)


def _kept_name(folder: Path) -> str:
    """Return the name given by an earlier `--name`; empty if there was none."""
    kept = folder / _NAME_FILE
    return kept.read_text().strip() if kept.is_file() else ""


async def _serve_node(options: "NodeOptions") -> None:
    from cluster.nodes.node import Agent

    agent = asyncio.create_task(Agent(options).run(), name="agent")
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, agent.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await agent


def where_and_token(where: str | None, controller: str | None, token: str) -> tuple[str | None, str]:
    """Interpret the first argument: join tokens have a prefix, anything else is an address."""
    if where and (where == _STDIN or where.startswith(_TOKEN_MARK)):
        if token:
            output.fail("two join tokens given; use only one", output.WRONG_USAGE)
        return controller, where
    if where and controller:
        output.fail(f"two addresses given, {where} and {controller}; use only one", output.WRONG_USAGE)
    return where or controller, token


def _state(row: dict[str, Any]) -> str:
    if row["removed_s"]:
        return f"removed on {_day(row['removed_s'])}"
    return ("connected" if row["present"] else "away") + (", drained" if row["draining"] else "")


@app.with_settings(
    "list",
    {
        "machine": "node",
        "id": "node_id",
        "state": _state,
        "certificate expires": lambda row: _day(row["certified_until_s"]),
    },
)
def list_machines(settings: Settings) -> Any:
    """List machines: connected, drained, removed. Example: millrace machines list"""
    return ask(settings, "GET", "/admin/machines")


@app.callback()
def machines(context: typer.Context, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List machines of the cluster. Example: millrace machines"""
    if context.invoked_subcommand is None:
        list_machines(context=context, data_dir=data_dir, as_json=as_json)


def _day(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d")


@app.with_settings("remove", "{name} ({removed}) was removed; its work continues on other machines.")
def remove(settings: Settings, name: Name) -> Any:
    """Remove a machine permanently. Example: millrace machines remove laptop"""
    return ask(settings, "POST", f"/admin/machines/{segment(name)}/remove")


@app.with_settings("rename", "{from} renamed to {to}.")
def rename(settings: Settings, name: Name, new_name: Annotated[str, typer.Argument(help="New name.")]) -> Any:
    """Rename a machine. Example: millrace machines rename laptop anns-laptop"""
    return ask(settings, "POST", f"/admin/machines/{segment(name)}/rename", {"name": new_name})


@app.with_settings("drain")
def drain(
    settings: Settings,
    name: Name,
    undo: Annotated[bool, typer.Option("--undo", help="Enable the machine again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only preview the new plan.")] = False,
) -> Report:
    """Move work off a machine before you switch it off. Example: millrace machines drain laptop"""
    if dry_run:
        if undo:
            output.fail("--dry-run cannot be combined with --undo", output.WRONG_USAGE)
        return Report(ask(settings, "POST", "/admin/plan", {"without": [name]}), show_draft)
    query = "?undo=true" if undo else ""
    done = ask(settings, "POST", f"/admin/machines/{segment(name)}/drain{query}")
    text = f"{name} is draining; `millrace nodes` shows when its layers have moved."
    return Report(done, f"{name} is enabled." if undo else text)


def show_draft(draft: dict[str, Any]) -> None:
    """Print the current plan, the new plan, and the changes."""
    for when in ("now", "then"):
        plan = draft[when]
        output.say(f"{when}: {'' if plan else 'no plan'}")
        for stage in plan["stages"] if plan else ():
            output.say(f"  {stage['node']}: {stage['reason']}")
        for reason in plan["reasons"] if plan else ():
            output.say(f"  {reason}")
    for line in draft["change"]:
        output.say(line)


def _show_nodes(cluster: dict[str, Any]) -> None:
    output.say(f"{cluster['status']}: {cluster['reason']} (plan {cluster['epoch']})")
    for reason in cluster["plan"]:
        output.say(f"  {reason}")
    for model in cluster["deployments"]:
        if model["model"] != cluster["model"]:
            output.say(f"{model['model']}: {model['status']}: {model['reason']}")
    columns = ("node", "device", "layers", "role", "reason")
    rows = [
        (
            node["node"],
            node["device"],
            "-".join(map(str, node["layers"])) if node["layers"] else "",
            "coordinator" if node["coordinator"] else "",
            node["reason"],
        )
        for node in cluster["nodes"]
    ]
    output.table(columns, rows)
    for node in cluster["nodes"]:
        for warning in node["warnings"]:
            output.say(f"{node['node']}: {warning['what']}; {warning['remedy']}")
    for name, why in cluster["absent"].items():
        output.say(f"{name} {why}")


@with_settings(_show_nodes)
def nodes(settings: Settings) -> Any:
    """List machines with their layers, and why each holds them. Example: millrace nodes"""
    return ask(settings, "GET", "/admin/cluster")


def _from_stdin() -> str:
    return str(typer.get_text_stream("stdin").readline().strip())


def split_address(text: str) -> tuple[str, int]:
    """Parse HOST, HOST:PORT, V6, [V6] or [V6]:PORT; end the command for anything else."""
    found = _BARE_V6.fullmatch(text) or _WITH_PORT.fullmatch(text)
    if found is None:
        output.fail(f"{text} is not HOST[:PORT] or [V6]:PORT", output.WRONG_USAGE)
    port = int(found.groupdict().get("port") or DEFAULT_PORT)
    if not 0 < port < 65536:
        output.fail(f"{text}: {port} is not a valid port", output.WRONG_USAGE)
    return found["host"].strip("[]"), port
