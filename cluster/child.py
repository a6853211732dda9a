"""A child process of a node's agent: started, spoken to in frames, and reported when it ends."""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable

import psutil
import structlog

from cluster import wire
from cluster.channel import read_frame
from cluster.errors import FrameInvalid, LinkLost

log = structlog.get_logger(__name__)

STOP_TIMEOUT_S = 5.0
# A fresh child imports torch first, which takes slow disks a while; later its pipe thread answers at once.
START_PATIENCE_S = 120.0
PATIENCE_S = 10.0
ASK_EVERY_S = 2.0

Handle = Callable[[wire.Message], Awaitable[None]]
Ended = Callable[[str], Awaitable[None]]


class Child:
    """One run of `python -m MODULE`. Its messages go to `handle`; `ended` is told why when it ends by itself.

    A child that shows no sign of life, because it was stopped or swapped out, is killed and counts as ended.
    """

    def __init__(self, role: str, module: str, arguments: list[str], handle: Handle, ended: Ended) -> None:
        self.role = role
        self._command = [sys.executable, "-m", module, *arguments]
        self._handle = handle
        self._ended = ended
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._alive = asyncio.Event()

    async def start(self) -> None:
        """Returns when the process runs. Raises OSError."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        self._tasks = [
            asyncio.create_task(self._read(self._process), name=f"{self.role} child"),
            asyncio.create_task(self._watch(self._process), name=f"{self.role} watch"),
        ]

    @property
    def memory_bytes(self) -> int:
        """Resident memory, 0 once the process is gone."""
        try:
            return psutil.Process(self._process.pid).memory_info().rss if self._process else 0
        except psutil.Error:
            return 0

    async def send(self, message: wire.Message) -> None:
        """Raises LinkLost when the child is gone."""
        assert self._process
        assert self._process.stdin
        try:
            self._process.stdin.write(wire.encode(message))
            await self._process.stdin.drain()
        except OSError:
            raise LinkLost(f"the {self.role} process has ended") from None

    async def stop(self) -> None:
        """Close its pipe, which asks it to end, and insist when it does not."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            log.warning("child killed", role=self.role, reason="it did not end by itself")
            _kill(process)
            await process.wait()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout
        try:
            while True:
                message, _ = await read_frame(process.stdout)
                self._alive.set()
                if not isinstance(message, wire.Tick):
                    await self._handle(message)
        except asyncio.IncompleteReadError:
            reason = f"exit status {await process.wait()}"
        except (FrameInvalid, LinkLost) as error:
            reason = str(error)
            _kill(process)
        log.error("child ended", role=self.role, reason=reason)
        self._tasks[1].cancel()
        await self._ended(f"its {self.role} process ended: {reason}")

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        patience_s = START_PATIENCE_S
        while True:
            self._alive.clear()
            try:
                async with asyncio.timeout(patience_s):
                    await self.send(wire.Tick())
                    await self._alive.wait()
            except LinkLost:
                return
            except TimeoutError:
                log.error("child killed", role=self.role, reason=f"no sign of life for {patience_s:.0f} s")
                _kill(process)
                return
            patience_s = PATIENCE_S
            await asyncio.sleep(ASK_EVERY_S)


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
