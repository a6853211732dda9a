"""The ways in and out: ports, the cluster's machines and links, the pool, the house, the seller's tunnel."""

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
from gateway.cli.running import peek
from gateway.data_folder import DataFolder
from gateway.settings import Settings

_PATIENCE_S = 10.0
_LINUX_IP_MTU = 14
_MTU_MIN = 1400


def look_outside(settings: Settings) -> Iterator[Finding]:
    folder = DataFolder(settings.data_dir)
    running = folder.read_running()
    asked = peek(running, "/admin/cluster")
    if asked is None and running is not None and psutil.pid_exists(int(running["pid"])):
        what = f"it runs (pid {running['pid']}) and does not answer at {running['base_url']}"
        yield fail("gateway", what, "look into its log; stop it and start it again")
    elif asked is None:
        yield from ports(settings)
        yield unseen(
            "cluster",
            "links, delays, rates, MTU and clocks of other machines are not seen: no gateway runs here",
            "`millrace up`, then `millrace doctor` again",
        )
    else:
        yield ok("gateway", "it runs and answers")
        for trouble in (peek(running, "/readyz", (200, 503)) or {}).get("warnings", []):
            yield fail("gateway", trouble, "mend it; the gateway looks again by itself")
        yield from machines(asked)
        yield from backends(peek(running, "/admin/pool") or [])
    yield from controller(folder.node / "controller.json")
    if settings.market.house_url:
        yield reach("house", settings.market.house_url, "is the address right, and is there a way out?")
    yield from selling(settings, folder)


def ports(settings: Settings) -> Iterator[Finding]:
    """Those that a gateway would listen on, as long as none does."""
    server, cluster = settings.server, settings.cluster
    yield port("server.port", server.host, server.port, must=True)
    if cluster.port or server.port:
        yield port(
            "cluster.port", cluster.host or server.host, cluster.port or server.port + 1, must=bool(cluster.port)
        )


def port(setting: str, host: str, number: int, *, must: bool) -> Finding:
    if number == 0:
        return ok("ports", f"{setting}: a free one is taken at each start")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, number), family=family).close()
    except OSError as error:
        what = f"{setting}: cannot listen on {host}:{number}: {error.strerror}"
        if must:
            return fail("ports", what, f"end what listens there, or set {setting}")
        return warn("ports", what, "any other port is taken then, which join commands say")
    who = "for this machine alone" if _is_loopback(host) else "for whoever reaches this machine"
    return ok("ports", f"{setting}: {host}:{number} is free, {who}")


def machines(cluster: dict[str, Any]) -> Iterator[Finding]:
    """What the controller knows of every machine, and the links between them as they were measured."""
    nodes = cluster["nodes"]
    if cluster["model"] and cluster["status"] != "ready":
        remedy = "`millrace nodes` says more; `millrace advise MODEL` whether it fits"
        yield fail("cluster", f"{cluster['model']} is {cluster['status']}: {cluster['reason']}", remedy)
    yield ok("cluster", f"{len(nodes)} machine(s) are here, in epoch {cluster['epoch']}")
    for node in nodes:
        for found in node["warnings"]:
            yield warn("cluster", f"{node['node']}: {found['what']}", found["remedy"])
    links = cluster.get("links", [])
    for link in links:
        way = f"{link['from']} to {link['to']}"
        what = f"{way}: {link['delay_ms']:.2f} ms, {link['mbit_per_s']:.0f} Mbit/s, MTU {link['mtu_bytes']}"
        if link["mtu_bytes"] < _MTU_MIN:
            yield warn("links", what, "look for a VPN or tunnel in the path, or raise its MTU")
        else:
            yield ok("links", what)
    if len(nodes) > 1 and not links:
        yield unseen("links", "no link between machines has been measured yet", "look again in a minute")


def backends(pool: list[dict[str, Any]]) -> Iterator[Finding]:
    for backend in pool:
        what = f"{backend['name']} ({backend['kind']}) is {backend['state']}"
        if backend["state"] in ("ready", "draining"):
            yield ok("pool", f"{what}: {len(backend['models'])} models")
        else:
            yield warn("pool", f"{what}: {backend['note']}", f"start it at {backend['base_url']}, or remove it")
        for text in backend["warnings"]:
            yield warn("pool", f"{backend['name']}: {text}", "see docs/operations.md, pool")


def controller(file: Path) -> Iterator[Finding]:
    """Where this machine is a node of somebody's cluster: whether the controller is reached, in which packets."""
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
        what = f"the controller at {host}:{number} cannot be reached: {error.strerror or error}"
        yield warn("controller", what, "is its gateway up, and is its nodes' port open in the firewall?")
        return
    what = f"the controller at {host}:{number} is reached" + (f", in packets of {size} bytes" if size else "")
    if size and size < _MTU_MIN:
        yield warn("controller", what, "look for a VPN or tunnel in the path, or raise its MTU")
    else:
        yield ok("controller", what)


def selling(settings: Settings, folder: DataFolder) -> Iterator[Finding]:
    from gateway.selling.tunnel_process import TunnelFailed, find_cloudflared, version_of

    if not settings.selling.models and not (folder.market / "selling.lock").exists():
        return
    if settings.selling.tunnel in ("quick", "named"):
        try:
            program = find_cloudflared(settings.selling.cloudflared)
        except TunnelFailed as error:
            yield fail("tunnel", str(error), "install cloudflared, or set selling.tunnel to none")
        else:
            version = asyncio.run(version_of(program))
            yield ok("tunnel", f"cloudflared {version or 'of an unknown version'} is at {program}")
    if not _is_locked(folder.market / "selling.lock"):
        yield unseen("tunnel", "nothing is sold now, so there is no tunnel to look at", "`millrace sell` opens it")
    elif settings.selling.public_url:
        yield reach("tunnel", settings.selling.public_url, "the log of `millrace sell` says why it is down")
    else:
        yield unseen("tunnel", "`millrace sell` runs; the tunnel's state is in its log", "look for tunnel.* there")


def _is_locked(file: Path) -> bool:
    """Whether a process holds it."""
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
