"""Builds the coordinator from the settings, and runs this gateway's tasks that use it."""

import asyncio
import os
import secrets
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson
import structlog
from sqlalchemy.orm import Session

from gateway.coordination.coordinator import Coordinator, CoordinatorUnavailable
from gateway.coordination.fence import highest_epoch
from gateway.coordination.leadership import Leadership
from gateway.coordination.membership import Membership
from gateway.coordination.rights import RevokedKeys
from gateway.identity.keys import Keys
from gateway.settings import CoordinationSettings
from runtime.settings import SettingsInvalid

log = structlog.get_logger(__name__)

_POLL_S = 1.0
_AGAIN_S = 1.0
_UNTOLD_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Coordination:
    """The coordinator that gateways share, and the list of live gateways."""

    coordinator: Coordinator
    membership: Membership
    read: Callable[[], Session]

    def lead(self, name: str) -> Leadership:
        """Return a claim to a chore's leader lease. The caller must fence the chore's writes by its `lease`."""

        def known() -> int:
            with self.read() as session:
                return highest_epoch(session.connection(), name)

        return Leadership(self.coordinator, name, highest_epoch=lambda: asyncio.to_thread(known))


@asynccontextmanager
async def open_coordination(
    settings: CoordinationSettings,
    keys: Keys,
    read: Callable[[], Session],
    write: Callable[[], Session],
    *,
    poll_s: float = _POLL_S,
) -> AsyncGenerator[Coordination]:
    """Coordinate with the other gateways within the block. A database is polled every `poll_s` seconds.

    Raises:
        SettingsInvalid: certificates for etcd cannot be read.
    """
    coordinator = _coordinator(settings, read, write, poll_s)
    name = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    facts = {"host": socket.gethostname(), "pid": os.getpid()}
    membership = Membership(
        coordinator,
        name,
        orjson.dumps(facts),
        on_change=lambda other: log.info("gateway", name=other, is_there=other in membership.members),
    )
    revoked = RevokedKeys(coordinator, keys.drop_refused)
    untold = _Untold(revoked)
    try:
        # Without it, keys are checked only in the database until the coordinator answers.
        await revoked.load()
    except CoordinatorUnavailable as error:
        log.warning("the coordinator does not answer yet", reason=str(error))
    keys.refused, keys.on_revoked = revoked, untold.note
    tasks = [
        asyncio.create_task(each.run(), name=f"coordination: {what}")
        for what, each in (("membership", membership), ("revoked keys", revoked), ("revocations told", untold))
    ]
    try:
        yield Coordination(coordinator, membership, read)
    finally:
        keys.on_revoked = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await coordinator.aclose()


class _Untold:
    """Revocations that are not published yet."""

    def __init__(self, revoked: RevokedKeys) -> None:
        self._revoked = revoked
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[str] = asyncio.Queue(_UNTOLD_MAX)

    def note(self, key_ids: Sequence[str]) -> None:
        """Publish a revocation; callable from any thread."""
        self._loop.call_soon_threadsafe(self._take, key_ids)

    def _take(self, key_ids: Sequence[str]) -> None:
        for key_id in key_ids:
            if self._waiting.full():
                log.warning("too many unsent revocations: other gateways read them from the database")
                return
            self._waiting.put_nowait(key_id)

    async def run(self) -> None:
        while True:
            await self._tell(await self._waiting.get())

    async def _tell(self, key_id: str) -> None:
        while True:
            try:
                await self._revoked.add(key_id)
            except CoordinatorUnavailable as error:
                log.warning("revocation not sent yet", key=key_id, reason=str(error))
            else:
                return
            await asyncio.sleep(_AGAIN_S)


def _coordinator(
    settings: CoordinationSettings, read: Callable[[], Session], write: Callable[[], Session], poll_s: float
) -> Coordinator:
    if settings.kind == "database":
        from gateway.coordination.database import DatabaseCoordinator

        return DatabaseCoordinator(read, write, poll_s=poll_s)
    from gateway.coordination.etcd import EtcdCoordinator
    from gateway.coordination.etcd_members import EtcdMembers

    members = EtcdMembers(settings.etcd_urls, _tls(settings), settings.timeout_s)
    return EtcdCoordinator(members, settings.prefix)


def _tls(settings: CoordinationSettings) -> ssl.SSLContext | None:
    if not (settings.etcd_ca or settings.etcd_certificate):
        return None
    try:
        context = ssl.create_default_context(cafile=settings.etcd_ca)
        if settings.etcd_certificate:
            context.load_cert_chain(settings.etcd_certificate)
    except OSError as error:
        raise SettingsInvalid(f"coordination: a certificate for etcd cannot be used: {error.strerror}") from None
    return context
