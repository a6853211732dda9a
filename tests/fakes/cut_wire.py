"""A cable between two machines that is cut in the middle of an answer: no byte passes any more."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_AT_ONCE = 2**16


@dataclass
class Scissors:
    """Cuts once, when so many more bytes of answers to posts have passed any of the wires."""

    after_bytes: int | None = None
    posts: list[bytes] = field(default_factory=list)
    cuts: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def pass_on(self, data: bytes) -> tuple[bytes, bool]:
        """What of it passes, and whether that was all."""
        with self._lock:
            if self.after_bytes is None:
                return data, False
            passed, self.after_bytes = data[: self.after_bytes], self.after_bytes - len(data)
            if self.after_bytes > 0:
                return data, False
            self.after_bytes = None
            self.cuts += 1
            return passed, True


@contextmanager
def wire_to(base_url: str, scissors: Scissors) -> Iterator[str]:
    """The base URL of the wire's near end."""
    far = urlsplit(base_url)
    listener = socket.create_server(("127.0.0.1", 0))
    accepting = threading.Thread(target=_accept, args=(listener, (far.hostname, far.port), scissors), daemon=True)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join(60)


def _accept(listener: socket.socket, far: tuple[str, int], scissors: Scissors) -> None:
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        try:
            line = _Line(near, socket.create_connection(far, 5), scissors)
        except OSError:
            near.close()
            continue
        for work in (line.ask, line.answer):
            threading.Thread(target=work, daemon=True).start()


@dataclass
class _Line:
    near: socket.socket
    far: socket.socket
    scissors: Scissors
    is_post: bool = False

    def ask(self) -> None:
        while data := _receive(self.near):
            if data.startswith(b"POST"):
                self.scissors.posts.append(data)
            elif not data.startswith(b"GET") and self.is_post:
                self.scissors.posts[-1] += data
            self.is_post = data.startswith(b"POST") or (self.is_post and not data.startswith(b"GET"))
            _send(self.far, data)
        _hang_up(self.far)

    def answer(self) -> None:
        while data := _receive(self.far):
            passed, is_cut = self.scissors.pass_on(data) if self.is_post else (data, False)
            _send(self.near, passed)
            if is_cut:
                _hang_up(self.far)
                break
        _hang_up(self.near)


def _receive(side: socket.socket) -> bytes:
    try:
        return side.recv(_AT_ONCE)
    except OSError:
        return b""


def _send(side: socket.socket, data: bytes) -> None:
    try:
        side.sendall(data)
    except OSError:
        _hang_up(side)


def _hang_up(side: socket.socket) -> None:
    with suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)
    side.close()
