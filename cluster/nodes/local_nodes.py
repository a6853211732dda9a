"""Nodes on this very machine, started and stopped with the gateway."""

import asyncio
import contextlib
from pathlib import Path

import msgspec
import structlog

from cluster.nodes.interpreter import command_of, environment
from cluster.nodes.node_options import NodeOptions
from cluster.nodes.probe import compute_threads
from cluster.trust.addresses import Target

log = structlog.get_logger(__name__)

STOP_TIMEOUT_S = 10.0


class LocalNodes:
    """`count` node processes that share this machine's cores, and `memory_share` of its memory, evenly."""

    def __init__(self, count: int, folder: Path, memory_share: float = 1.0, log_style: str = "json:info") -> None:
        self._count = count
        self._memory_share = memory_share
        self._folder = folder
        self._log_style = log_style
        self._options: list[NodeOptions] = []
        self._processes: list[asyncio.subprocess.Process] = []

    async def start(self, controller: Target, tokens: list[str]) -> None:
        """One token a node; a node that has joined before does not use its token."""
        for number, token in enumerate(tokens, start=1):
            options = NodeOptions(
                name=f"node-{number}",
                folder=str(self._folder / f"node-{number}"),
                controller=controller,
                token=token,
                threads=compute_threads(self._count),
                share=self._memory_share / self._count,
                shares_files=True,
                log_style=self._log_style,
            )
            self._options.append(options)
            self._processes.append(await _launch(options))

    async def restart(self, number: int) -> None:
        """Start node `number`, counted from 1, anew: its process has ended."""
        self._processes[number - 1] = await _launch(self._options[number - 1])

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    async def stop(self) -> None:
        await asyncio.gather(*(_stop(process) for process in self._processes))


async def _launch(options: NodeOptions) -> asyncio.subprocess.Process:
    # In a session of its own, so that a terminal's Ctrl-C reaches the gateway alone, which drains first.
    process = await asyncio.create_subprocess_exec(
        *command_of("cluster.nodes.node_process"),
        stdin=asyncio.subprocess.PIPE,
        env=environment(),
        start_new_session=True,
    )
    assert process.stdin
    # Not on the command line: a token is a secret.
    process.stdin.write(msgspec.json.encode(options) + b"\n")
    await process.stdin.drain()
    log.info("local node started", node=options.name, pid=process.pid)
    return process


async def _stop(process: asyncio.subprocess.Process) -> None:
    assert process.stdin
    process.stdin.close()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
