"""`millrace join`, `nodes` and `token`: more machines for the cluster."""

import asyncio
import contextlib
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import output
from gateway.cli.running import ask
from gateway.cli.serving import AsJson, DataDir, settings_from

if TYPE_CHECKING:
    from cluster.node import NodeOptions

token = typer.Typer(help="Join tokens, one for each new machine.", no_args_is_help=True)

DEFAULT_PORT = 8401
_STDIN = "-"
_ANY = ("0.0.0.0", "::")  # noqa: S104 - recognised, not bound
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@token.command("create")
def create_token(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Make a join token; it works once, for 15 minutes. Example: millrace token create"""
    made = ask(settings_from(data_dir), "POST", "/admin/tokens")
    if as_json:
        output.data(made)
        return
    output.talk.print("Run this on the new machine:")
    host = made["host"]
    if host in _ANY:
        from cluster.probe import own_address

        host = own_address(ipv6=host == _ANY[1]) or socket.gethostname()
    typer.echo(f"millrace join {host}:{made['port']} --token {made['token']}")
    if host in _LOOPBACK:
        output.talk.print(
            "This gateway only listens on this machine. For others start it with --host 0.0.0.0 "
            "(the nodes' port speaks mutual TLS only)."
        )


def join(
    host: Annotated[str, typer.Argument(help="The gateway's machine, with the nodes' port: HOST[:PORT].")],
    token: Annotated[
        str, typer.Option(help="Join token, needed the first time; - reads it from stdin.", envvar="JOIN_TOKEN")
    ] = "",
    name: Annotated[str | None, typer.Option(help="What the cluster calls this machine.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads to compute with.", min=1)] = None,
    data_dir: DataDir = None,
) -> None:
    """Make this machine a node and serve until Ctrl-C. Example: millrace join 192.168.1.10 --token T"""
    settings = settings_from(data_dir)
    from cluster.errors import ClusterError
    from cluster.joining import Target
    from cluster.node import NodeOptions
    from cluster.probe import compute_threads
    from gateway.observability import configure_logs

    configure_logs(settings.log.level, settings.log.format)
    address, port = _split(host)
    options = NodeOptions(
        name=name or socket.gethostname(),
        folder=str(settings.data_dir / "node"),
        controller=Target(address, port),
        token=_from_stdin() if token == _STDIN else token,
        threads=threads or compute_threads(),
        log_style=settings.log.style,
    )
    Path(options.folder).mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        asyncio.run(_serve_node(options))
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
    output.talk.print(f"{cluster['status']}: {cluster['reason']} (epoch {cluster['epoch']})", highlight=False)
    for reason in cluster["plan"]:
        output.talk.print(f"  {reason}", highlight=False)
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


def _split(host: str) -> tuple[str, int]:
    """HOST, HOST:PORT or [V6]:PORT."""
    address, colon, port = host.rpartition(":")
    if not colon or (":" in address and not address.startswith("[")):
        return host.strip("[]"), DEFAULT_PORT
    if not port.isdigit() or not 0 < int(port) < 65536:
        output.fail(f"{host}: {port!r} is no port", code=2)
    return address.strip("[]"), int(port)
