"""Revoked keys shared through etcd: every gateway refuses them a moment later, even if the database is away.

No request asks etcd: each gateway has the whole list, and keeps it while etcd does not answer.
"""

import asyncio
import base64
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import structlog

from gateway.identity.etcd_members import EtcdMembers, EtcdUnavailable
from gateway.identity.keys import Keys
from gateway.settings import CoordinationSettings
from runtime.settings import SettingsInvalid

log = structlog.get_logger(__name__)

# How long etcd keeps a revocation. No gateway uses a key for that long without asking the database (`key_cache`).
KEPT_S = 3600
_IDS_MAX = 100_000
_SILENCE_S = 20.0
_AGAIN_S = 1.0
_UNSENT_MAX = 10_000


@asynccontextmanager
async def share_revocations(settings: CoordinationSettings, keys: Keys) -> AsyncGenerator["SharedRevocations"]:
    """Share the revocations of `keys` with the other gateways within the block.

    Raises:
        SettingsInvalid: certificates for etcd cannot be read.
    """
    members = EtcdMembers(settings.etcd_urls, _tls(settings), settings.timeout_s)
    shared = SharedRevocations(members, settings.prefix, keys.drop_refused)
    try:
        # Without it, keys are checked only in the database until etcd answers.
        await shared.load()
    except EtcdUnavailable as error:
        log.warning("etcd does not answer yet", reason=str(error))
    keys.refused, keys.on_revoked = shared, shared.note
    tasks = [
        asyncio.create_task(shared.receive(), name="revocations received"),
        asyncio.create_task(shared.send(), name="revocations sent"),
    ]
    try:
        yield shared
    finally:
        keys.on_revoked = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await members.aclose()


class SharedRevocations:
    """The ids of keys that were revoked at any gateway, as far as they are known here.

    Args:
        prefix: the beginning of all keys in etcd, so that others may use the same etcd.
        on_change: called when another id is known.
    """

    def __init__(self, members: EtcdMembers, prefix: str, on_change: Callable[[], None]) -> None:
        self._members = members
        self._prefix = f"{prefix}/revoked/"
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._unsent: asyncio.Queue[str] = asyncio.Queue(_UNSENT_MAX)
        self._ids: frozenset[str] = frozenset()

    def __contains__(self, key_id: object) -> bool:
        return key_id in self._ids

    def note(self, key_ids: Sequence[str]) -> None:
        """Send revocations to the other gateways; callable from any thread."""
        self._loop.call_soon_threadsafe(self._note, key_ids)

    def _note(self, key_ids: Sequence[str]) -> None:
        for key_id in key_ids:
            if self._unsent.full():
                log.warning("too many unsent revocations: other gateways read them from the database")
                return
            self._unsent.put_nowait(key_id)

    async def load(self) -> int:
        """Load all ids and return the revision of etcd that has them. Raises EtcdUnavailable."""
        answer = await self._members.call("kv/range", self._range | {"limit": str(_IDS_MAX)})
        with _well_formed():
            self._know(self._ids_of(answer.get("kvs", ())))
            return int(answer["header"]["revision"])

    async def receive(self) -> None:
        """Learn of further revocations until cancelled."""
        while True:
            try:
                await self._watch(await self.load() + 1)
            except EtcdUnavailable as error:
                log.warning("revocations not received", reason=str(error))
                await asyncio.sleep(_AGAIN_S)

    async def send(self) -> None:
        """Send this gateway's revocations until cancelled; each is tried until etcd has it."""
        while True:
            key_id = await self._unsent.get()
            while True:
                try:
                    await self.add(key_id)
                except EtcdUnavailable as error:
                    log.warning("revocation not sent yet", key=key_id, reason=str(error))
                    await asyncio.sleep(_AGAIN_S)
                else:
                    break

    async def add(self, key_id: str) -> None:
        """Tell all gateways that a key is revoked. Raises EtcdUnavailable if some may not know it."""
        lease = await self._members.call("lease/grant", {"TTL": str(KEPT_S)})
        with _well_formed():
            lease_id = str(lease["ID"])
        name, value = _text(self._prefix + key_id), _text(str(time.time_ns()))
        await self._members.call("kv/put", {"key": name, "value": value, "lease": lease_id})
        self._know(self._ids | {key_id})

    async def _watch(self, first: int) -> None:
        """Follow all changes since a revision, until etcd is silent for a while. Raises EtcdUnavailable."""
        request = {"create_request": self._range | {"start_revision": str(first)}}
        async with aclosing(self._members.follow("watch", request, _SILENCE_S)) as answers:
            async for answer in answers:
                with _well_formed():
                    if answer.get("canceled"):
                        return
                    events = answer.get("events", ())
                    put = [event["kv"] for event in events if event.get("type") != "DELETE"]
                    self._know(self._ids | self._ids_of(put))

    def _ids_of(self, pairs: Iterable[dict[str, str]]) -> frozenset[str]:
        names = (base64.b64decode(pair["key"]).decode() for pair in pairs)
        return frozenset(name.removeprefix(self._prefix) for name in names)

    def _know(self, ids: frozenset[str]) -> None:
        before, self._ids = self._ids, ids
        if not ids <= before:
            self._on_change()

    @property
    def _range(self) -> dict[str, Any]:
        """All keys that begin with the prefix: the end is the prefix with its last character raised by one."""
        return {"key": _text(self._prefix), "range_end": _text(self._prefix[:-1] + chr(ord(self._prefix[-1]) + 1))}


@contextmanager
def _well_formed() -> Iterator[None]:
    """Raise EtcdUnavailable if the answer that is read within the block is not one of etcd's API."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise EtcdUnavailable(f"etcd's answer is malformed: {error!r}") from None


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


def _text(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
