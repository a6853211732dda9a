"""The shared parts of a node's child processes: the frame pipe to the agent, logs, and an end without it."""

import contextlib
import os
import threading
from collections.abc import Callable
from typing import BinaryIO

import structlog

from cluster import wire
from cluster.errors import FrameInvalid, LinkLost
from runtime.logs import configure_logs

_FAREWELL_S = 5.0


class AgentPipe:
    """Frames to and from the agent over stdin and stdout. Anything that prints goes to stderr instead."""

    def __init__(self) -> None:
        self._incoming: BinaryIO = os.fdopen(os.dup(0), "rb")
        self._outgoing: BinaryIO = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        self._sending = threading.Lock()

    def send(self, message: wire.Message) -> None:
        """Send a message. Do nothing if the agent is gone: `listen` then ends this process anyway."""
        with self._sending, contextlib.suppress(OSError, ValueError):
            self._outgoing.write(wire.encode(message))
            self._outgoing.flush()

    def listen(
        self,
        deliver: Callable[[wire.Message], None],
        stop: Callable[[], None],
        vitals: Callable[[], wire.Vitals],
    ) -> None:
        """Start the thread that hands every message to `deliver` and calls `stop` when the agent is gone.

        It answers the agent's questions for signs of life with `vitals`.
        """
        arguments = (deliver, stop, vitals)
        threading.Thread(target=self._listen, args=arguments, name="agent pipe", daemon=True).start()

    def _listen(
        self,
        deliver: Callable[[wire.Message], None],
        stop: Callable[[], None],
        vitals: Callable[[], wire.Vitals],
    ) -> None:
        with contextlib.suppress(LinkLost, FrameInvalid, OSError):
            while True:
                message_bytes, _ = wire.read_header(self._read(wire.HEADER.size), wire.ORDER_BYTES_MAX)
                message = wire.decode(self._read(message_bytes))
                if isinstance(message, wire.Tick):
                    self.send(wire.Tick(vitals()))
                else:
                    deliver(message)
        # A hanging computation must not keep an orphaned process alive. `stop` may hang, too.
        timer = threading.Timer(_FAREWELL_S, os._exit, (1,))
        timer.daemon = True
        timer.start()
        stop()

    def _read(self, size_bytes: int) -> bytes:
        content = self._incoming.read(size_bytes)
        if len(content) < size_bytes:
            raise LinkLost("the agent has ended")
        return content


def prepare(role: str, node_name: str, log_style: str) -> AgentPipe:
    """Set up a child process: logs on stderr, the pipe."""
    pipe = AgentPipe()
    configure_logs(log_style)
    structlog.contextvars.bind_contextvars(node=node_name, process=role)
    return pipe
