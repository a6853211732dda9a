"""A node's search for its controller: the configured address, the last known one, and the network."""

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from cluster.errors import LinkError, LinkLost, PeerRejected, WrongPeer
from cluster.joining.discovery import ALL_INTERFACES, LOOK_S, Interfaces, look_for
from cluster.trust.addresses import Target
from runtime.files import replace_file

log = structlog.get_logger(__name__)

Reached = TypeVar("Reached")


@dataclass(frozen=True, slots=True)
class ControllerSearch:
    """`configured` is the configured address, `file` stores the last known one, `discovery` allows mDNS."""

    configured: Target | None
    file: Path
    discovery: bool = False
    interfaces: Interfaces = ALL_INTERFACES

    async def reach(self, fingerprint: str, attempt: Callable[[Target], Awaitable[Reached]]) -> Reached:
        """Return what `attempt` returns at the first address where the controller is, and store that address.

        Only `attempt` can tell: it raises WrongPeer, LinkLost or FrameInvalid if the controller is not there.
        Raise PeerRejected if the controller itself refuses, or if another process answers at the only address.
        Raise LinkLost if another try may help.
        """
        failures: list[LinkError] = []
        async with contextlib.aclosing(self._targets(fingerprint)) as targets:
            async for target in targets:
                try:
                    reached = await attempt(target)
                except LinkError as error:
                    if isinstance(error, PeerRejected) and not isinstance(error, WrongPeer):
                        raise
                    failures.append(error)
                    continue
                self._remember(target)
                return reached
        if not failures:
            raise LinkLost(self._nothing_found())
        # Another process at an old address is not final while the controller may be at a new one.
        lost = [error for error in failures if isinstance(error, LinkLost)]
        if not lost and self.discovery:
            raise LinkLost(f"{failures[0]}; {self._nothing_found()}")
        raise lost[0] if lost else failures[0]

    def _nothing_found(self) -> str:
        looked = f"no controller of this cluster answered by mDNS within {LOOK_S:.0f} s" if self.discovery else ""
        return f"{looked or 'no controller address is known'}: name it with --controller HOST:PORT"

    async def _targets(self, fingerprint: str) -> AsyncGenerator[Target]:
        known = list(dict.fromkeys(target for target in (self.configured, self._last()) if target))
        for target in known:
            yield target
        if self.discovery:
            async with contextlib.aclosing(look_for(fingerprint, LOOK_S, self.interfaces)) as announced:
                async for target in announced:
                    if target not in known:
                        log.info("controller announced", controller=str(target))
                        yield target

    def _last(self) -> Target | None:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(self.file.read_bytes(), type=Target)
        return None

    def _remember(self, target: Target) -> None:
        if target != self._last():
            with contextlib.suppress(OSError):  # A full disk does not keep a machine from taking part.
                replace_file(self.file, msgspec.json.encode(target), mode=0o644)
