"""Checks of connections: ports, the cluster's machines and links, the pool, the marketplace, the tunnel."""

import asyncio
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import psutil

from gateway.cli.doctor.finding import Finding, fail, ok, unseen, warn
from gateway.cli.doctor.stores import reach
from gateway.cli.gateway_client import peek
from gateway.settings import Settings
from runtime.data_folder import DataFolder

_PATIENCE_S = 10.0
_LINUX_IP_MTU = 14
_MTU_MIN = 1400


def look_outside(settings: Settings) -> Iterator[Finding]:
    folder = DataFolder(settings.data_dir)
    running = folder.read_running()
    reply = peek(running, "/admin/cluster")
    if reply is None and running is not None and psutil.pid_exists(int(running["pid"])):
        what = f"running (pid {running['pid']}), but not answering at {running['base_url']}"
        yield fail("gateway", what, "check its log, then restart it")
    elif reply is None:
        yield from ports(settings)
        yield unseen(
            "cluster",
            "links and clocks of other machines are unknown: no gateway is running here",
            "run `millrace up`, then `millrace doctor` again",
        )
    else:
        yield ok("gateway", "running and answering")
        for trouble in (peek(running, "/readyz", (200, 503)) or {}).get("warnings", []):
            yield fail("gateway", trouble, "fix the cause; the gateway retries automatically")
        yield from machines(reply)
        yield from backends(peek(running, "/admin/pool") or [])
    yield from controller(folder.node / "controller.json")
    if settings.market.marketplace_url:
        yield reach("marketplace", settings.market.marketplace_url, "check the address and the network connection")
    yield from selling(settings, folder)


def ports(settings: Settings) -> Iterator[Finding]:
    """Check the ports that a gateway would use, if none is running."""
    server, cluster = settings.server, settings.cluster
    yield port("server.port", server.host, server.port, must=True)
    if cluster.port or server.port:
        yield port(
            "cluster.port", cluster.host or server.host, cluster.port or server.port + 1, must=bool(cluster.port)
        )


def port(setting: str, host: str, number: int, *, must: bool) -> Finding:
    if number == 0:
        return ok("ports", f"{setting}: a free port is chosen at each start")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, number), family=family).close()
    except OSError as error:
        what = f"{setting}: cannot listen on {host}:{number}: {error.strerror}"
        if must:
            return fail("ports", what, f"stop the program that uses it, or set {setting}")
        return warn("ports", what, "another port is chosen and shown in join commands")
    who = "reachable from this machine only" if _is_loopback(host) else "reachable from the network"
    return ok("ports", f"{setting}: {host}:{number} is free, {who}")


def machines(cluster: dict[str, Any]) -> Iterator[Finding]:
    """Report every machine that the controller knows, and the measured links between them."""
    nodes = cluster["nodes"]
    for model in cluster["deployments"]:
        if model["status"] != "ready":
            remedy = "see `millrace nodes`; `millrace advise MODEL` shows whether it fits"
            yield fail("cluster", f"{model['model']} is {model['status']}: {model['reason']}", remedy)
    yield ok("cluster", f"{len(nodes)} machine(s) connected, plan {cluster['epoch']}")
    for node in nodes:
        for found in node["warnings"]:
            yield warn("cluster", f"{node['node']}: {found['what']}", found["remedy"])
    links = cluster.get("links", [])
    for link in links:
        way = f"{link['from']} to {link['to']}"
        what = f"{way}: {link['delay_ms']:.2f} ms, {link['mbit_per_s']:.0f} Mbit/s, MTU {link['mtu_bytes']}"
        if link["mtu_bytes"] < _MTU_MIN:
            yield warn("links", what, "check for a VPN or tunnel in the path, or raise its MTU")
        else:
            yield ok("links", what)
    if len(nodes) > 1 and not links:
        yield unseen("links", "no links measured yet", "check again in a minute")


def backends(pool: list[dict[str, Any]]) -> Iterator[Finding]:
    for backend in pool:
        what = f"{backend['name']} ({backend['kind']}) is {backend['state']}"
        if backend["state"] in ("ready", "draining"):
            yield ok("pool", f"{what}: {len(backend['models'])} models")
        else:
            yield warn(
                "pool", f"{what}: {backend['note']}", f"start the server at {backend['base_url']}, or remove it"
            )
        for text in backend["warnings"]:
            yield warn("pool", f"{backend['name']}: {text}", "see docs/operations.md, pool")


def controller(file: Path) -> Iterator[Finding]:
    """If this machine is a cluster node, check that it reaches the controller, and the packet size."""
    try:
        place = orjson.loads(file.read_bytes())
        host, number = str(place["host"]), int(place["port"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    try:
        with socket.create_connection((host, number), timeout=_PATIENCE_S) as connection:
            is_known = hasattr(socket, "IPPROTO_IP") and connection.family == socket.AF_INET and os.name == "posix"
            size = connection.getsockopt(socket.IPPROTO_IP, _LINUX_IP_MTU) if is_known else None
    except OSError as error:
        what = f"cannot reach the controller at {host}:{number}: {error.strerror or error}"
        yield warn(
            "controller", what, "check that its gateway is running and the firewall allows its cluster port"
        )
        return
    what = f"controller at {host}:{number} reachable" + (f", MTU {size} bytes" if size else "")
    if size and size < _MTU_MIN:
        yield warn("controller", what, "check for a VPN or tunnel in the path, or raise its MTU")
    else:
        yield ok("controller", what)


def selling(settings: Settings, folder: DataFolder) -> Iterator[Finding]:
    from market.seller.tunnel_process import TunnelFailed, find_cloudflared, version_of

    if not settings.selling.models and not (folder.market / "selling.lock").exists():
        return
    if settings.selling.tunnel in ("quick", "named"):
        try:
            program = find_cloudflared(settings.selling.cloudflared)
        except TunnelFailed as error:
            yield fail("tunnel", str(error), "install cloudflared, or set selling.tunnel to none")
        else:
            version = asyncio.run(version_of(program))
            yield ok("tunnel", f"cloudflared {version or '(unknown version)'} at {program}")
    if not _is_locked(folder.market / "selling.lock"):
        yield unseen("tunnel", "selling is not running, so there is no tunnel to check", "start `millrace sell`")
    elif settings.selling.public_url:
        yield reach("tunnel", settings.selling.public_url, "see the log of `millrace sell`")
    else:
        yield unseen(
            "tunnel", "`millrace sell` is running; its log has the tunnel's state", "look for tunnel.* in the log"
        )


def _is_locked(file: Path) -> bool:
    """Whether a process holds the lock."""
    try:
        descriptor = os.open(file, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"
