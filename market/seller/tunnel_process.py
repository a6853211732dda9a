"""One run of cloudflared: started in its own session, checked for health, stopped."""

import asyncio
import os
import shutil
import socket
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import httpx
import msgspec
import structlog

from market.seller import tunnel_keeper
from runtime import children

log = structlog.get_logger(__name__)

Protocol = Literal["auto", "http2"]
Health = Literal["ready", "unready", "silent"]

DOWNLOADS = "https://developers.cloudflare.com/cloudflare-one/networks/connectors/cloudflare-tunnel/downloads/"
LAST_LINES = 20
END_S = 5.0
_OTHERS = 0o077
PASSED_ON = ("LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
"""The part of our environment that cloudflared gets: every TUNNEL_* variable would be one of its options."""

_CAUSES = (
    ("token is not valid", "its token is not valid. Copy it again from the tunnel's page at Cloudflare."),
    ("read token file", "its token file cannot be read"),
    ("1015", "Cloudflare limits quick tunnels for this address. Try again later."),
    ("429", "Cloudflare limits quick tunnels for this address. Try again later."),
    ("request quick Tunnel", "Cloudflare could not be asked for a quick tunnel"),
    ("bind to address", "its health-check port was in use"),
)
"""Messages that cloudflared prints when it fails, and their causes."""


class TunnelFailed(Exception):
    """No tunnel; the message tells the owner why."""


@dataclass(frozen=True, slots=True)
class TunnelOptions:
    """The choice of a tunnel to `service_url`: a named one if there is a `token_file`, else a quick one.

    A named tunnel's target and its name (`public_url`) are configured at Cloudflare.
    """

    service_url: str
    token_file: Path | None = None
    public_url: str = ""
    cloudflared: str = "cloudflared"
    allows_loopback: bool = False
    """True if an address of this machine may replace a public name, as in tests."""


class _Ready(msgspec.Struct):
    readyConnections: int = 0  # noqa: N815 - cloudflared's name


class _QuickTunnel(msgspec.Struct):
    hostname: str = ""


@dataclass(eq=False)
class TunnelProcess:
    """cloudflared, and the keeper process that ends it if we die."""

    _process: Process
    _metrics_url: str
    _folder: Path
    _client: httpx.AsyncClient
    _output: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    _listening: asyncio.Task[None] | None = None

    @property
    def keeper_pid(self) -> int:
        return self._process.pid

    def listen(self) -> None:
        self._listening = asyncio.create_task(self._hear(), name="tunnel-log")

    @property
    def has_exited(self) -> bool:
        return self._process.returncode is not None

    async def exited(self) -> None:
        await self._process.wait()

    async def health(self) -> Health:
        """Return whether Cloudflare's edge is connected; `silent` if cloudflared gives no answer."""
        try:
            answer = await self._client.get(f"{self._metrics_url}/ready")
            ready = msgspec.json.decode(answer.content, type=_Ready)
        except (httpx.HTTPError, msgspec.MsgspecError):
            return "silent"
        return "ready" if answer.status_code == 200 and ready.readyConnections > 0 else "unready"

    async def quick_url(self) -> str:
        """Return a quick tunnel's address, empty if cloudflared states none."""
        try:
            answer = await self._client.get(f"{self._metrics_url}/quicktunnel")
            hostname = msgspec.json.decode(answer.content, type=_QuickTunnel).hostname
        except (httpx.HTTPError, msgspec.MsgspecError):
            return ""
        return hostname if "://" in hostname or not hostname else f"https://{hostname}"

    async def why_it_ended(self) -> str:
        """Return why it exited, for the owner; its own last line if the cause is unknown."""
        if self._listening is not None:
            await asyncio.wait({self._listening}, timeout=END_S)
        everything = "\n".join(self._output)
        for sign, cause in _CAUSES:
            if sign in everything:
                return cause
        return f"it exited, saying: {self._output[-1][:200]}" if self._output else "it exited"

    async def stop(self, grace_s: float) -> None:
        """Let requests in progress finish within the grace time, then kill it."""
        try:
            await children.end(self._process, grace_s + END_S)
        finally:
            await self._forget()

    async def _forget(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait({self._listening}, timeout=END_S)
        await self._client.aclose()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _hear(self) -> None:
        async for line in children.lines_of(self._process.stderr):
            text = line.decode("utf-8", "replace").strip()
            self._output.append(text)
            log.debug("tunnel.said", said=text[:500])


def find_cloudflared(name: str) -> str:
    """Return the program's path; raises TunnelFailed, which says where to get it."""
    found = shutil.which(name)
    if found is None:
        raise TunnelFailed(
            f"{name} was not found. Get cloudflared from {DOWNLOADS}, or set selling.cloudflared to its path."
            " Or set selling.tunnel to none: buyers then come through the marketplace."
        )
    return found


async def version_of(program: str, timeout_s: float = 10.0) -> str:
    """Return its version, such as 2026.8.2; empty if it states none."""
    process = await children.start(program, "--version", stderr=DEVNULL)
    try:
        async with asyncio.timeout(timeout_s):
            assert process.stdout is not None
            words = (await process.stdout.read(4096)).decode("utf-8", "replace").split()
            await process.wait()
    except TimeoutError:
        return ""
    finally:
        await children.reap(process)
    return next((word[:40] for word in words if word[0].isdigit()), "")


async def launch(options: TunnelOptions, protocol: Protocol, *, grace_s: float, answer_s: float) -> TunnelProcess:
    """Start cloudflared; raises TunnelFailed if that fails, and leaves nothing behind then.

    `answer_s` is how long its own port may take for an answer.
    """
    program = find_cloudflared(options.cloudflared)
    if options.token_file is not None:
        _check_closed(options.token_file)
    try:
        folder = Path(tempfile.mkdtemp(prefix="millrace-tunnel-"))
        metrics = f"127.0.0.1:{_free_port()}"
    except OSError as error:
        raise TunnelFailed(f"cloudflared cannot be started: {error.strerror}") from None
    try:
        keeper = sys.executable, "-I", tunnel_keeper.__file__, str(grace_s)
        arguments = _arguments(options, protocol, metrics, folder, grace_s)
        process = await children.start(
            *keeper, program, *arguments, env=_environment(folder), cwd=folder, stdout=DEVNULL, stderr=PIPE
        )
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise TunnelFailed(f"{program} cannot be started: {error.strerror}") from None
    started = TunnelProcess(
        process, f"http://{metrics}", folder, httpx.AsyncClient(trust_env=False, timeout=answer_s)
    )
    started.listen()
    return started


def _check_closed(token_file: Path) -> None:
    """Raises TunnelFailed if other users can read the token, with which they could answer in our name."""
    try:
        mode = token_file.stat().st_mode
    except OSError as error:
        raise TunnelFailed(f"its token file {token_file} cannot be read: {error.strerror}") from None
    if mode & _OTHERS:
        raise TunnelFailed(f"its token file can be read by other users. Run: chmod 600 {token_file}")


def _arguments(
    options: TunnelOptions, protocol: Protocol, metrics: str, folder: Path, grace_s: float
) -> list[str]:
    # A config.yml of the owner is for other tunnels.
    config = folder / "config.yml"
    config.write_text("no-autoupdate: true\n")
    shared = ["tunnel", "--config", str(config), "--no-autoupdate", "--metrics", metrics]
    shared += ["--grace-period", f"{grace_s:g}s"]
    if protocol != "auto":
        shared += ["--protocol", protocol]
    if options.token_file is None:
        return [*shared, "--url", options.service_url]
    # Pass the token as a file: other users can read arguments and environments of processes.
    return [*shared, "run", "--token-file", str(options.token_file)]


def _environment(folder: Path) -> dict[str, str]:
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), **passed_on}


def _free_port() -> int:
    """Return a port that is free now. If another program takes it first, cloudflared exits and is restarted."""
    with socket.socket() as attempt:
        attempt.bind(("127.0.0.1", 0))
        return int(attempt.getsockname()[1])
