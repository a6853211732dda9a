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
    """Of the process: address space, and processor time for one rendering.

    `reply_s` is the longest wait for an answer, and for the answers to those who asked before.
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
    """Any thread may ask; conversations are rendered one after the other.

    A process that ended is started again when it is needed.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._turn = threading.Lock()
        self._child: _Child | None = None
        self._end_child: weakref.finalize[..., Any] | None = None

    def read(self) -> dict[str, Any]:
        """What the process says of the template: `takes_tools`, or `refused` or `failed` with the reason.

        Raises TemplateStopped, ClusterBusy, ClusterUnavailable.
        """
        return self._asked(None)

    def render(self, variables: dict[str, Any]) -> dict[str, Any]:
        """`text`, or `refused` or `failed` with the reason. The variables are plain JSON.

        Raises TemplateStopped, ClusterBusy, ClusterUnavailable.
        """
        return self._asked(json.dumps(variables).encode())

    def _asked(self, question: bytes | None) -> dict[str, Any]:
        if not self._turn.acquire(timeout=LIMITS.reply_s):
            raise ClusterBusy("the model's chat template is busy with other conversations. Try again.")
        try:
            try:
                reply = self._answer(question)
            except _Ended:
                # Another program, or the system when memory ran out, may have killed it: try once more.
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
        """Raises TemplateStopped, _Ended, OSError."""
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
        # It may be stopped, and then takes no question either.
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
        """The status of the process that was there."""
        child, self._child = self._child, None
        if child is None or self._end_child is None:
            return None
        with suppress(TimeoutExpired):
            child.process.wait(0.2)
        self._end_child()
        return child.process.returncode


class _Ended(Exception):
    """The process ended instead of an answer, for another reason than its time."""


def _end(child: _Child) -> None:
    child.pipe.close()
    child.process.kill()
    with suppress(TimeoutExpired):
        child.process.wait(_ENDS_WITHIN_S)


def _environment() -> dict[str, str]:
    """Where our code is, and how times are told: nothing else of the owner's."""
    found = environment()
    return {"PATH": os.defpath} | {name: found[name] for name in _PASSED_ON if name in found}
