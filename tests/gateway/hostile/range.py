"""Where the attacks are made: a gateway in a process of its own, before a backend that does what it is told."""

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.fakes.broken_upstream import CHAT, BrokenUpstream, broken_upstream
from tests.gateway.http.edges import Answered
from tests.gateways import Gateway, running_gateway, until

SPARES = tuple(f"spare-{number}" for number in range(12))
TIMEOUT_S = 60.0
BODY_BYTES_MAX = 4 * 2**20
PATIENCE_S = 4.0
TOTAL_S = 5.0


@dataclass
class Range:
    gateway: Gateway
    upstream: BrokenUpstream
    port: int

    @contextmanager
    def connected(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S) as made:
            yield made

    def head(self, more: bytes, path: bytes = b"/v1/chat/completions", method: bytes = b"POST") -> bytes:
        line = b"%b %b HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n%b\r\n"
        return line % (method, path, self.gateway.api_key.encode(), more)

    def request(self, body: bytes, more: bytes = b"", path: bytes = b"/v1/chat/completions") -> bytes:
        return self.head(b"content-length: %d\r\n%b" % (len(body), more), path) + body

    def say(self, *parts: bytes) -> bytes:
        """What comes back over a connection of its own until it is closed there."""
        with self.connected() as made:
            for part in parts:
                try:
                    made.sendall(part)
                except OSError:
                    break
            return everything(made)

    def ask(self, *, path: bytes = b"/v1/chat/completions", **fields: Any) -> Answered:
        return Answered.read_from(self.say(self.request(question(**fields), b"connection: close\r\n", path)))

    def assert_well(self) -> None:
        """A good request is served; nothing is under way."""
        assert self.ask().content == CHAT
        until(lambda: self.in_flight == 0 or None)

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self.gateway.process.pid)

    @property
    def in_flight(self) -> float:
        text = self.gateway.http().get("/metrics").text
        return float(next(line.split()[1] for line in text.splitlines() if line.startswith("millrace_in_flight ")))


def question(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]} | fields).encode()


def everything(made: socket.socket) -> bytes:
    """Up to the end, or a reset."""
    parts = []
    try:
        while part := made.recv(2**16):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def reset(made: socket.socket) -> None:
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.close()


@contextmanager
def open_range(folder: Path) -> Iterator[Range]:
    with broken_upstream() as upstream:
        # Several, since one that fails three times in a row is left alone for a while.
        backends = [
            {"name": f"backend-{model}", "base_url": upstream.base_url, "models": [model], "kind": "openai"}
            for model in ("m", *SPARES)
        ]
        settings = {
            "SERVER__BODY_BYTES_MAX": str(BODY_BYTES_MAX),
            "POOL__BACKENDS": json.dumps(backends),
            "POOL__FIRST_BYTE_S": str(PATIENCE_S),
            "POOL__SILENCE_S": str(PATIENCE_S),
            "POOL__TOTAL_S": str(TOTAL_S),
        }
        with running_gateway(folder, model=None, settings=settings) as gateway:
            yield Range(gateway, upstream, int(gateway.root.rpartition(":")[2]))
