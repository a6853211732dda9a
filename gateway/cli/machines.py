"""`millrace join`, `nodes` and `token`: more machines for the cluster."""

import asyncio
import contextlib
import re
import signal
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import output
from gateway.cli.running import ask
from gateway.cli.serving import AsJson, DataDir, settings_from, warn_of_open_folder
from gateway.data_folder import DataFolder
from gateway.settings import SettingsInvalid

if TYPE_CHECKING:
    from cluster.node import NodeOptions

token = typer.Typer(help="Join tokens, one for each new machine.", no_args_is_help=True)

DEFAULT_PORT = 8401
_STDIN = "-"
_BARE_V6 = re.compile(r"(?P<host>[^:\[\]]*:[^\[\]]*:[^\[\]]*)")
_WITH_PORT = re.compile(r"(?P<host>\[[^\[\]]+\]|[^:\[\]]+)(?::(?P<port>[0-9]{1,5}))?")
_ANY = ("0.0.0.0", "::")  # noqa: S104 - recognised, not bound
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@token.command("create")
def create_token(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Make a join token; it works once, for 15 minutes. Example: millrace token create"""
    made = ask(settings_from(data_dir), "POST", "/admin/tokens")
    if as_json:
        output.data(made)
        return
    output.say("Run this on the new machine:")
    host = made["host"]
    if host in _ANY:
        from cluster.probe import own_address

        host = own_address(ipv6=host == _ANY[1]) or socket.gethostname()
    shown = f"[{host}]" if ":" in host else host
    typer.echo(f"millrace join {shown}:{made['port']} --token {made['token']}")
    if host in _LOOPBACK:
        output.say(
            "This gateway only listens on this machine. For others start it with --host 0.0.0.0 "
            "(the nodes' port speaks mutual TLS only)."
        )


def join(
    host: Annotated[
        str, typer.Argument(help="The gateway's machine, with the nodes' port: HOST[:PORT], [V6]:PORT.")
    ],
    token: Annotated[
        str, typer.Option(help="Join token, needed the first time; - reads it from stdin.", envvar="JOIN_TOKEN")
    ] = "",
    name: Annotated[str | None, typer.Option(help="What the cluster calls this machine.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads to compute with.", min=1)] = None,
    data_dir: DataDir = None,
) -> None:
    """Make this machine a node and serve until Ctrl-C. Example: millrace join 192.168.1.10 --token T"""
    settings = settings_from(data_dir)
    from cluster.errors import ClusterError, LinkLost
    from cluster.joining import Target
    from cluster.node import NodeOptions
    from cluster.probe import compute_threads
    from gateway.observability import configure_logs

    configure_logs(settings.log.level, settings.log.format)
    address, port = split_address(host)
    folder = DataFolder(settings.data_dir)
    options = NodeOptions(
        name=name or socket.gethostname(),
        folder=str(folder.node),
        controller=Target(address, port),
        token=_from_stdin() if token == _STDIN else token,
        threads=threads or compute_threads(),
        log_style=settings.log.style,
    )
    try:
        folder.prepare()
        warn_of_open_folder(folder)
        folder.node.mkdir(exist_ok=True)
        asyncio.run(_serve_node(options))
    except (SettingsInvalid, OSError) as error:
        output.fail(str(error))
    except LinkLost as error:
        output.fail(str(error), output.UNREACHABLE)
    except ClusterError as error:
        output.fail(str(error), output.REFUSED)


async def _serve_node(options: "NodeOptions") -> None:
    from cluster.node import Agent

    agent = asyncio.create_task(Agent(options).run(), name="agent")
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, agent.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await agent


def nodes(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show machines, their layers and why they have them. Example: millrace nodes"""
    cluster = ask(settings_from(data_dir), "GET", "/admin/cluster")
    if as_json:
        output.data(cluster)
        return
    output.say(f"{cluster['status']}: {cluster['reason']} (epoch {cluster['epoch']})")
    for reason in cluster["plan"]:
        output.say(f"  {reason}")
    columns = ("node", "device", "layers", "head", "reason")
    rows = [
        (
            node["node"],
            node["device"],
            "-".join(map(str, node["layers"])) if node["layers"] else "",
            "head" if node["head"] else "",
            node["reason"],
        )
        for node in cluster["nodes"]
    ]
    output.table(columns, rows, as_json=False)


def _from_stdin() -> str:
    return str(typer.get_text_stream("stdin").readline().strip())


def split_address(text: str) -> tuple[str, int]:
    """HOST, HOST:PORT, V6, [V6] or [V6]:PORT; ends the command for anything else."""
    found = _BARE_V6.fullmatch(text) or _WITH_PORT.fullmatch(text)
    if found is None:
        output.fail(f"{text} is no HOST[:PORT] or [V6]:PORT", output.WRONG_USAGE)
    port = int(found.groupdict().get("port") or DEFAULT_PORT)
    if not 0 < port < 65536:
        output.fail(f"{text}: {port} is no port", output.WRONG_USAGE)
    return found["host"].strip("[]"), port
