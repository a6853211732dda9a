"""The program itself, in place of Cloudflare's."""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import urllib.parse
import uuid
from pathlib import Path

from tests.fakes.cloudflared import GOOD_TOKEN, VERSION, Orders
from tests.fakes.cloudflared.proxy import HEAD_BYTES_MAX, Proxy

LOOK_EVERY_S = 0.02
CONNECTOR = uuid.uuid4()


def main() -> int:
    if sys.argv[1:] in (["--version"], ["version"]):
        sys.stdout.write(f"cloudflared version {VERSION} (built 2026-08-20-1054 UTC)\n")
        return 0
    orders = Orders()
    given = _arguments()
    if orders.note_start() <= orders.behaviour.failing_starts:
        _say(
            "ERR",
            'failed to request quick Tunnel: Post "https://api.trycloudflare.com/tunnel": dial tcp: no route',
        )
        return 1
    if given.command == "run" and Path(given.token_file).read_text().strip() != GOOD_TOKEN:
        sys.stderr.write("Provided Tunnel token is not valid.\nSee 'cloudflared tunnel run --help'.\n")
        return 255
    if orders.behaviour.ignores_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return asyncio.run(_Tunnel(orders, given).run())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="cloudflared", allow_abbrev=False)
    tunnel = parser.add_subparsers(required=True).add_parser("tunnel", allow_abbrev=False)
    tunnel.add_argument("--config")
    tunnel.add_argument("--no-autoupdate", action="store_true")
    tunnel.add_argument("--metrics", required=True)
    tunnel.add_argument("--protocol", choices=("auto", "quic", "http2"), default="auto")
    tunnel.add_argument("--grace-period", default="30s")
    tunnel.add_argument("--url")
    run = tunnel.add_subparsers(dest="command").add_parser("run", allow_abbrev=False)
    run.add_argument("--token-file", required=True)
    return parser.parse_args()


class _Tunnel:
    def __init__(self, orders: Orders, given: argparse.Namespace) -> None:
        self._orders = orders
        self._given = given
        self._hostname = ""
        self._connections: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        ended = asyncio.Event()
        if not self._orders.behaviour.ignores_sigterm:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        # A named tunnel has it from Cloudflare, where its owner has set it.
        origin = urllib.parse.urlsplit(self._given.url or self._orders.behaviour.named_service)
        proxy = Proxy(self._orders, (str(origin.hostname), origin.port or 80))
        public = await asyncio.start_server(
            proxy.serve, "127.0.0.1", self._orders.behaviour.public_port, limit=HEAD_BYTES_MAX
        )
        if not self._given.command:
            self._hostname = f"http://127.0.0.1:{public.sockets[0].getsockname()[1]}"
            self._draw_box()
        host, _, port = self._given.metrics.rpartition(":")
        metrics = await asyncio.start_server(self._tell, host, int(port))
        _say("INF", f"Starting metrics server on {host}:{metrics.sockets[0].getsockname()[1]}/metrics")
        if self._is_ready:
            _say("INF", f"Registered tunnel connection connIndex=0 protocol={self._given.protocol}")
        status = await self._last(ended)
        public.close()
        metrics.close()
        return status

    async def _last(self, ended: asyncio.Event) -> int:
        """Until we are told to end, or do so by ourselves; returns the exit status."""
        while not ended.is_set():
            if self._orders.behaviour.is_ending:
                _say("ERR", 'Connection terminated error="there are no free edge addresses left to resolve to"')
                return 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await ended.wait()
        _say("INF", "Initiating graceful shutdown due to signal terminated ...")
        return 0

    @property
    def _is_ready(self) -> bool:
        behaviour = self._orders.behaviour
        return behaviour.is_ready and (not behaviour.needs_http2 or self._given.protocol == "http2")

    def _draw_box(self) -> None:
        # Its public name would be here; a name that is unreachable from outside stands for it.
        message = "Your quick Tunnel has been created! Visit it at (it may take some time to be reachable):"
        shown = "https://quiet-river-stone-mill.trycloudflare.com"
        rule = "+" + "-" * (len(message) + 4) + "+"
        for line in (rule, f"|  {message}  |", f"|  {shown.ljust(len(message))}  |", rule):
            _say("INF", line)

    async def _tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            request = await reader.readuntil(b"\r\n\r\n")
            if self._orders.behaviour.is_hanging:
                await reader.read(-1)
                return
            status, body = self._page(request.split(b" ")[1].decode())
            head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            writer.write(head.encode() + body.encode())
            await writer.drain()
        writer.close()

    def _page(self, path: str) -> tuple[str, str]:
        if path == "/quicktunnel":
            return "200 OK", json.dumps({"hostname": self._hostname})
        if path == "/ready":
            is_ready = self._is_ready
            facts = {
                "status": 200 if is_ready else 503,
                "readyConnections": int(is_ready),
                "connectorId": str(CONNECTOR),
            }
            return "200 OK" if is_ready else "503 Service Unavailable", json.dumps(facts)
        if path == "/metrics":
            return (
                "200 OK",
                f'build_info{{version="{VERSION}"}} 1\ncloudflared_tunnel_ha_connections {int(self._is_ready)}\n',
            )
        return ("200 OK", "OK\n") if path == "/healthcheck" else ("404 Not Found", "404 page not found\n")


def _say(level: str, text: str) -> None:
    sys.stderr.write(f"2026-11-23T04:00:00Z {level} {text}\n")


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # open connections do not delay the exit, as when Go's main returns
