"""Nodes on this machine: started with the gateway, started again when they end, stopped with it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from cluster.errors import PeerRejected
from cluster.nodes.absences import Absences
from cluster.nodes.node_options import REMOVED_STATUS, NodeOptions
from cluster.nodes.probe import compute_threads
from cluster.trust import renewal
from cluster.trust.addresses import Target
from cluster.trust.identity import Identity
from runtime import children
from runtime.interpreter import command_of

log = structlog.get_logger(__name__)

STOP_TIMEOUT_S = 10.0
# The pause before an ended node starts again, by how often it has ended in a row.
PAUSES_S = (0.5, 2.0, 5.0, 15.0, 60.0)
# A node that has run for this long was healthy: earlier ends no longer count.
SETTLED_S = 300.0
# The limit for a node's reason for ending: one line, not a log.
_REASON_BYTES_MAX = 500


@dataclass(slots=True)
class _LocalNode:
    """One node process. `ends` counts how often it has ended in a row."""

    options: NodeOptions
    process: asyncio.subprocess.Process
    started_s: float = field(default_factory=time.monotonic)
    ends: int = 0


class LocalNodes:
    """`count` node processes that share this machine's cores, and `memory_share` of its memory, evenly.

    They also share `kv_disk_gb` of its disk, for saved KV blocks.
    """

    def __init__(
        self,
        count: int,
        folder: Path,
        memory_share: float = 1.0,
        log_style: str = "json:info",
        kv_disk_gb: float = 0.0,
    ) -> None:
        self._count = count
        self._memory_share = memory_share
        self._kv_disk_gb = kv_disk_gb
        self._folder = folder
        self._log_style = log_style
        self._nodes: list[_LocalNode] = []
        self._keepers: list[asyncio.Task[None]] = []

    async def start(self, controller: Target, tokens: list[str]) -> None:
        """Start the nodes, one for each token. A node that has joined earlier does not use its token."""
        for number, token in enumerate(tokens, start=1):
            options = NodeOptions(
                name=f"node-{number}",
                folder=str(self._folder / f"node-{number}"),
                controller=controller,
                token=token,
                threads=compute_threads(self._count),
                share=self._memory_share / self._count,
                kv_disk_gb=self._kv_disk_gb / self._count,
                shares_files=True,
                log_style=self._log_style,
            )
            self._nodes.append(_LocalNode(options, await _launch(options)))

    def keep_running(self, new_token: Callable[[], str], absences: Absences) -> None:
        """Start every node again that ends, after a pause, from now until `stop`.

        `new_token` makes a join token for a node that ended before it had joined.
        """
        self._keepers = [
            asyncio.create_task(_keep(node, new_token, absences), name=f"keeper of {node.options.name}")
            for node in self._nodes
        ]

    async def restart(self, number: int) -> None:
        """Start node `number`, counted from 1, again: its process has ended."""
        node = self._nodes[number - 1]
        node.process = await _launch(node.options)

    @property
    def pids(self) -> list[int]:
        return [node.process.pid for node in self._nodes]

    async def stop(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(children.end(node.process, STOP_TIMEOUT_S) for node in self._nodes))


async def _keep(node: _LocalNode, new_token: Callable[[], str], absences: Absences) -> None:
    """Start a node again whenever it ends, unless the cluster has removed it."""
    name = node.options.name
    while (reason := await _end_of(node.process)) is not None:
        if time.monotonic() - node.started_s >= SETTLED_S:
            node.ends = 0
        is_down = True
        while is_down:
            await _pause(node, reason, absences)
            try:
                node.process = await _launch(_with_token(node.options, new_token))
                node.started_s, is_down = time.monotonic(), False
            except (OSError, ValueError, PeerRejected) as error:
                reason = f"it cannot be started: {error}"
    log.warning("local node removed", node=name)
    absences.end(name)


async def _pause(node: _LocalNode, reason: str, absences: Absences) -> None:
    """Record why a node does not run, and wait until its next start."""
    pause_s = PAUSES_S[min(node.ends, len(PAUSES_S) - 1)]
    node.ends += 1
    times = f", {node.ends} times in a row" if node.ends > 1 else ""
    log.warning("local node ended", node=node.options.name, reason=reason, again_in_s=pause_s, times=node.ends)
    absences.note(node.options.name, f"ended ({reason}){times}; it restarts in {pause_s:g} s")
    await asyncio.sleep(pause_s)


async def _end_of(process: asyncio.subprocess.Process) -> str | None:
    """Wait for the end of the process and return its reason, or None if the cluster removed the machine."""
    assert process.stdout
    output = await process.stdout.read(_REASON_BYTES_MAX)
    status = await process.wait()
    if status == REMOVED_STATUS:
        return None
    if status < 0:
        return f"killed by signal {-status}"
    return output.decode(errors="replace").strip() or f"exit status {status}, see the log"


def _with_token(options: NodeOptions, new_token: Callable[[], str]) -> NodeOptions:
    """Return the options with a fresh token if the node has no valid certificate, otherwise without a token.

    With a token a removed machine would join again. Raise PeerRejected or OSError.
    """
    identity = Identity(Path(options.folder) / "identity")
    is_known = identity.exists and not renewal.has_ended(identity)
    return msgspec.structs.replace(options, token="" if is_known else new_token())


async def _launch(options: NodeOptions) -> asyncio.subprocess.Process:
    process = await children.start(*command_of("cluster.nodes.node_process"))
    assert process.stdin
    # Not on the command line: a token is a secret.
    process.stdin.write(msgspec.json.encode(options) + b"\n")
    log.info("local node started", node=options.name, pid=process.pid)
    return process
