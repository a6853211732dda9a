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

Handle = Callable[[wire.Message], Awaitable[None]]
Ended = Callable[[str], Awaitable[None]]


class Child:
    """One run of `python -m MODULE`. Its messages go to `handle`; `ended` is told why when it ends by itself."""

    def __init__(self, role: str, module: str, arguments: list[str], handle: Handle, ended: Ended) -> None:
        self.role = role
        self._command = [sys.executable, "-m", module, *arguments]
        self._handle = handle
        self._ended = ended
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        self._reading = asyncio.create_task(self._read(self._process), name=f"{self.role} child")

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
        if self._reading:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
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
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout
        try:
            while True:
                message, _ = await read_frame(process.stdout)
                await self._handle(message)
        except asyncio.IncompleteReadError:
            reason = f"exit status {await process.wait()}"
        except (FrameInvalid, LinkLost) as error:
            reason = str(error)
            process.kill()
        log.error("child ended", role=self.role, reason=reason)
        await self._ended(f"its {self.role} process ended: {reason}")
