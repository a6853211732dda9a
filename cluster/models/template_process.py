"""The parent's side of a chat template, which is rendered in a process of its own with bounds."""

import json
import os
import signal
import threading
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, Pipe
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import Any

from cluster.errors import ClusterBusy, ClusterUnavailable
from runtime.interpreter import command_of, environment

_MODULE = "cluster.models.template_renderer"
_REPLY_BYTES_MAX = 2**29
_ENDS_WITHIN_S = 5.0
_PASSED_ON = ("PYTHONPATH", "TZ", "LANG", "LC_ALL")


@dataclass(frozen=True)
class TemplateLimits:
    """The limits of the process: its address space, and its processor time for one rendering.

    `reply_s` is the longest wait for an answer, and for the answers to earlier requests.
    """

    memory_bytes: int = 2 * 2**30
    cpu_s: float = 5.0
    reply_s: float = 60.0


LIMITS = TemplateLimits()


class TemplateStopped(Exception):
    """The template took too much time or memory."""


@dataclass(frozen=True)
class _Child:
    process: Popen[bytes]
    pipe: Connection


class TemplateProcess:
    """A process that renders conversations, one after the other. Any thread may call it.

    If the process has ended, the next call starts it again.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._turn = threading.Lock()
        self._child: _Child | None = None
        self._end_child: weakref.finalize[..., Any] | None = None

    def read(self) -> dict[str, Any]:
        """Return the process's report on the template: `takes_tools`, or `refused` or `failed` with the reason.

        Raise TemplateStopped, ClusterBusy or ClusterUnavailable.
        """
        return self._request(None)

    def render(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Return `text`, or `refused` or `failed` with the reason. The variables are plain JSON.

        Raise TemplateStopped, ClusterBusy or ClusterUnavailable.
        """
        return self._request(json.dumps(variables).encode())

    def _request(self, question: bytes | None) -> dict[str, Any]:
        if not self._turn.acquire(timeout=LIMITS.reply_s):
            raise ClusterBusy("the model's chat template is busy with other conversations. Try again.")
        try:
            try:
                reply = self._answer(question)
            except _Ended:
                # Another program, or the system without free memory, may have killed it. Try once more.
                reply = self._answer(question)
        except _Ended as ended:
            raise TemplateStopped(str(ended)) from None
        except OSError as error:
            raise ClusterUnavailable(f"no process can be started for the chat template: {error}") from None
        finally:
            self._turn.release()
        if "stopped" in reply:
            raise TemplateStopped(reply["stopped"])
        return reply

    def _answer(self, question: bytes | None) -> dict[str, Any]:
        """Send a question and return the reply. Raise TemplateStopped, _Ended or OSError."""
        if self._child is None or question is None:
            reply = self._start()
            if question is None or "takes_tools" not in reply:
                return reply
        assert question is not None
        return self._exchange(question)

    def _start(self) -> dict[str, Any]:
        self._end()
        parent_end, child_end = Pipe()
        with child_end:
            process = Popen(
                command_of(_MODULE, str(child_end.fileno())),
                pass_fds=[child_end.fileno()],
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
        child = self._child = _Child(process, parent_end)
        self._end_child = weakref.finalize(self, _end, child)
        return self._exchange(json.dumps({"source": self._source, **asdict(LIMITS)}).encode())

    def _exchange(self, question: bytes) -> dict[str, Any]:
        assert self._child
        child = self._child
        # The process may be stopped, and then reads no question either.
        watch = threading.Timer(LIMITS.reply_s, child.process.kill)
        watch.daemon = True
        watch.start()
        try:
            child.pipe.send_bytes(question)
            reply: dict[str, Any] = json.loads(child.pipe.recv_bytes(_REPLY_BYTES_MAX))
        except (EOFError, OSError, ValueError):
            status = self._end()
            if status == -signal.SIGPROF:
                raise TemplateStopped(f"it takes longer than {LIMITS.cpu_s:g} s") from None
            raise _Ended(f"its process ended with status {status}") from None
        finally:
            watch.cancel()
        return reply

    def _end(self) -> int | None:
        """End the process and return its exit status; None without a process."""
        child, self._child = self._child, None
        if child is None or self._end_child is None:
            return None
        with suppress(TimeoutExpired):
            child.process.wait(0.2)
        self._end_child()
        return child.process.returncode


class _Ended(Exception):
    """The process ended without an answer, for a reason other than its time limit."""


def _end(child: _Child) -> None:
    child.pipe.close()
    child.process.kill()
    with suppress(TimeoutExpired):
        child.process.wait(_ENDS_WITHIN_S)


def _environment() -> dict[str, str]:
    """Return the process's environment: our code's paths and the time zone, and no other variable of the owner."""
    variables = environment()
    return {"PATH": os.defpath} | {name: variables[name] for name in _PASSED_ON if name in variables}
