"""One counting process as its parent uses it: started, asked one question at a time, ended."""

import os
import select
import signal
import threading
import time
from contextlib import suppress
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired

import msgspec

from market.token_counting.frames import LENGTH, CountingLimits, CountQuestion, CountReply, packed
from runtime.interpreter import command_of, environment

REPLY_BYTES_MAX = 2**18
_MODULE = "market.token_counting"
_END_S = 5.0
# These signals come from outside: from the kernel when memory runs out, or from users.
_FROM_OUTSIDE = frozenset((-signal.SIGKILL, -signal.SIGTERM))


class Died(Exception):
    """The process ended instead of answering, and was not killed from outside."""


class Stuck(Exception):
    """No answer came in time, or the process was killed from outside: that says nothing about the question."""


class CountingProcess:
    """Blocking; one thread at a time may ask. The process ends with its parent, because it reads its pipe."""

    def __init__(self, limits: CountingLimits) -> None:
        """Raises OSError if no process can be started."""
        self._process = Popen(  # its environment has nothing but where our code is
            command_of(_MODULE),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            bufsize=0,
            env=_environment(),
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._asks, self._hears = self._process.stdin.fileno(), self._process.stdout.fileno()
        for pipe in (self._asks, self._hears):
            os.set_blocking(pipe, False)
        self._first = packed(limits)
        # The process may end by itself; then its exit status must be collected.
        threading.Thread(target=self._process.wait, name="counting", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, question: CountQuestion, within_s: float) -> CountReply:
        """Raises Died, Stuck; the caller must then end the process."""
        until_s = time.monotonic() + within_s
        message, self._first = self._first + packed(question), b""
        try:
            self._tell(message, until_s)
            (length,) = LENGTH.unpack(self._hear(LENGTH.size, until_s))
            if length > REPLY_BYTES_MAX:
                raise Died("its reply is too long")
            return msgspec.msgpack.decode(self._hear(length, until_s), type=CountReply)
        except (BrokenPipeError, EOFError):
            raise self._why() from None
        except msgspec.MsgspecError:
            raise Died("its reply cannot be read") from None

    def kill(self) -> None:
        """Kill the process, from any thread; a thread that is asking it gets Stuck."""
        self._process.kill()

    def end(self) -> None:
        """Kill the process in any case, and release its resources."""
        self.kill()
        with suppress(TimeoutExpired):
            self._process.wait(_END_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()

    def _why(self) -> Died | Stuck:
        try:
            status = self._process.wait(_END_S)
        except TimeoutExpired:
            return Stuck("it closed its pipes")
        if status in _FROM_OUTSIDE:
            return Stuck(f"it was killed with signal {-status}")
        if status == -signal.SIGPROF:
            return Died("it takes too long")
        return Died(f"it ended the counting process with status {status}")

    def _tell(self, data: bytes, until_s: float) -> None:
        rest = memoryview(data)
        while rest:
            _await(self._asks, select.POLLOUT, until_s)
            with suppress(BlockingIOError):
                rest = rest[os.write(self._asks, rest) :]

    def _hear(self, size: int, until_s: float) -> bytes:
        heard = b""
        while len(heard) < size:
            _await(self._hears, select.POLLIN, until_s)
            with suppress(BlockingIOError):
                part = os.read(self._hears, size - len(heard))
                if not part:
                    raise EOFError
                heard += part
        return heard


def _await(pipe: int, event: int, until_s: float) -> None:
    # Not select.select, which fails if a gateway has many files open.
    poll = select.poll()
    poll.register(pipe, event)
    if not poll.poll(max(0.0, until_s - time.monotonic()) * 1000):
        raise Stuck("no answer came in time")


def _environment() -> dict[str, str]:
    found = {"PATH": os.defpath, "TOKENIZERS_PARALLELISM": "false"}
    path = environment().get("PYTHONPATH")
    return found | {"PYTHONPATH": path} if path else found
