"""A child process of a node's agent: the agent starts it, exchanges frames with it and reports its end."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Literal

import psutil
import structlog

from cluster import wire
from cluster.errors import FrameInvalid, LinkLost
from cluster.net.channel import read_frame
from runtime import children
from runtime.interpreter import command_of, environment

log = structlog.get_logger(__name__)

STOP_TIMEOUT_S = 5.0
# A new child imports torch first, which takes a while on slow disks. Later its pipe thread answers at once, except
# while it reads tokenizers and weights.
START_PATIENCE_S = 120.0
LOADING_PATIENCE_S = 30.0
PATIENCE_S = 1.4
PING_EVERY_S = 0.4
# A child that was stopped or swapped out for this long is not waited for.
KILL_PATIENCE_S = 60.0
# If this process wakes this much later than planned, it was stopped itself.
_STALL_S = 0.3

# Put weights in huge pages if Linux offers them: fewer TLB misses, up to a third more speed.
_HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
# Between these messages a child may be busy for longer.
_LOADING = (wire.AssignStage, wire.AssignCoordinator, wire.AssignEmbedder, wire.Shelve)
_LOADED = (wire.Hello, wire.Ready, wire.Shelved, wire.Failed)

Role = Literal["stage", "coordinator", "embedder"]

Handle = Callable[[wire.Message], Awaitable[None]]
Tell = Callable[[str], Awaitable[None]]


class Child:
    """One run of `python -m MODULE` for a deployment.

    `handle` takes its messages; `ended` takes the reason if it ends by itself. `silent` is called when the child
    shows no sign of life. A child that is only busy answers again. A stopped child does not, and is killed after
    KILL_PATIENCE_S.
    """

    def __init__(
        self,
        deployment: str,
        role: Role,
        module: str,
        arguments: list[str],
        handle: Handle,
        ended: Tell,
        silent: Tell,
    ) -> None:
        self.deployment = deployment
        self.role = role
        self._answering = asyncio.Event()
        self._answering.set()
        # Its latest counters.
        self.vitals: wire.Vitals | None = None
        self._command = command_of(module, *arguments)
        self._handle = handle
        self._ended = ended
        self._silent = silent
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._heard_s = 0.0
        self._patience_s = START_PATIENCE_S

    async def start(self) -> None:
        """Start the process, and return once it runs. Raise OSError if it cannot be started."""
        self._process = await children.start(*self._command, env=_HUGE_PAGES | environment())
        self._tasks = [
            asyncio.create_task(self._read(self._process), name=f"{self.role} child"),
            asyncio.create_task(self._watch(self._process), name=f"{self.role} watch"),
        ]

    @property
    def is_silent(self) -> bool:
        return not self._answering.is_set()

    @property
    def memory_bytes(self) -> int:
        """Return its resident memory, or 0 once the process is gone."""
        try:
            return psutil.Process(self._process.pid).memory_info().rss if self._process else 0
        except psutil.Error:
            return 0

    async def send(self, message: wire.Message) -> None:
        """Send a message to the child. Raise LinkLost if the child is gone."""
        assert self._process
        assert self._process.stdin
        if isinstance(message, _LOADING):
            self._patience_s = max(self._patience_s, LOADING_PATIENCE_S)
        try:
            self._process.stdin.write(wire.encode(message))
            # Do not wait for a child that does not read, least of all in the task that must detect it.
            if not self.is_silent and not isinstance(message, wire.Tick):
                await self._process.stdin.drain()
        except OSError:
            raise LinkLost(f"the {self.role} process has ended") from None

    async def answers_within(self, timeout_s: float) -> bool:
        """Tell whether the child is alive. A silent child gets `timeout_s` seconds for a sign of life."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._answering.wait()
        return not self.is_silent

    async def stop(self) -> None:
        """Close its pipe, which asks it to end. Kill it if it does not."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._process and not await children.end(self._process, 0 if self.is_silent else STOP_TIMEOUT_S):
            log.warning("child process killed", role=self.role, reason="it did not end by itself")

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout
        try:
            while True:
                message, _ = await read_frame(process.stdout)
                self._note_life(message)
                if not isinstance(message, wire.Tick):
                    await self._handle(message)
        except asyncio.IncompleteReadError:
            reason = f"exit status {await process.wait()}"
        except (FrameInvalid, LinkLost) as error:
            reason = str(error)
            children.kill(process)
        log.error("child process ended", role=self.role, reason=reason)
        self._tasks[1].cancel()
        await self._ended(f"its {self.role} process ended: {reason}")

    def _note_life(self, message: wire.Message) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        if isinstance(message, wire.Tick):
            self.vitals = message.vitals
        elif isinstance(message, _LOADED):
            self._patience_s = PATIENCE_S
        if self.is_silent:
            self._answering.set()
            log.info("child process answers again", role=self.role)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        loop = asyncio.get_running_loop()
        self._heard_s = loop.time()
        while self._heard_s + KILL_PATIENCE_S + self._patience_s > loop.time():
            sent_s = loop.time()
            with contextlib.suppress(LinkLost):
                await self.send(wire.Tick())
            await asyncio.sleep(PING_EVERY_S)
            stall_s = loop.time() - sent_s - PING_EVERY_S
            if stall_s > _STALL_S:
                self._heard_s += stall_s
            quiet_s = loop.time() - self._heard_s
            if quiet_s > self._patience_s and not self.is_silent:
                self._answering.clear()
                log.warning("child process is silent", role=self.role, seconds=round(quiet_s, 1))
                await self._silent(f"its {self.role} process shows no sign of life")
        log.error("child process killed", role=self.role, reason=f"no sign of life for {KILL_PATIENCE_S:.0f} s")
        children.kill(process)
