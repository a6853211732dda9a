"""The coordinator on etcd, which works while more than half of its members do.

An epoch is a separate counter beside the leader lease: the transaction that takes the lease raises it, and it
stays when etcd's lease ends.
"""

import asyncio
import base64
import math
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

import orjson

from gateway.coordination.coordinator import (
    ENTRIES_MAX,
    CoordinatorEntry,
    CoordinatorUnavailable,
    EntryChange,
    HeldLease,
    check_entry,
    check_key,
    check_ttl,
    differences,
)
from gateway.coordination.etcd_members import Answer, EtcdMembers

_SILENCE_S = 20.0
_PAUSE_S = 0.2
# The winner of a race for an epoch then holds the lease, so a few tries are enough.
_TRIES = 4


class EtcdCoordinator:
    """See `gateway.coordination.coordinator.Coordinator`. Belongs to one event loop.

    Args:
        prefix: the beginning of all of its keys, so that others may use the same etcd.
    """

    def __init__(self, members: EtcdMembers, prefix: str = "millrace") -> None:
        self._members = members
        self._prefix = prefix

    async def aclose(self) -> None:
        await self._members.aclose()

    async def acquire(self, name: str, ttl_s: float, *, above: int = 0) -> HeldLease | None:
        check_key(name)
        check_ttl(ttl_s)
        lease = await self._lease(ttl_s)
        nonce = secrets.token_hex(16)
        for _ in range(_TRIES):
            counter = await self._entry(self._key("epochs", name))
            epoch = max(int(counter.value) if counter else 0, above) + 1
            mine = orjson.dumps({"epoch": epoch, "nonce": nonce})
            answer = await self._call(
                "kv/txn", _taking(self._key("seats", name), self._key("epochs", name), counter, epoch, mine, lease)
            )
            held = _entries(answer["responses"][0].get("response_range", {}))
            # If an answer was lost and the call was retried, this gateway already holds the lease.
            if answer.get("succeeded") or (held and held[0].value == mine):
                return HeldLease(name, epoch, lease, ttl_s)
            if held:
                break
        await self._end(lease)
        return None

    async def renew(self, lease: HeldLease) -> bool:
        kept = await self._call("lease/keepalive", {"ID": lease.token})
        return int(kept.get("TTL", 0)) > 0 and await self._is_held(lease)

    async def release(self, lease: HeldLease) -> None:
        await self._end(lease.token)

    async def put(
        self, key: str, value: bytes, *, revision: int | None = None, ttl_s: float | None = None
    ) -> int | None:
        check_entry(key, value, ttl_s)
        name = self._key("entries", key)
        written = {"key": name, "value": _text(value)}
        if ttl_s is not None:
            written["lease"] = await self._lease(ttl_s)
        if revision is None:
            return _revision(await self._call("kv/put", written))
        transaction = {"compare": [_is_at(name, revision)], "success": [{"request_put": written}]}
        answer = await self._call("kv/txn", transaction, may_repeat=False)
        return _revision(answer) if answer.get("succeeded") else None

    async def get(self, key: str) -> CoordinatorEntry | None:
        check_key(key)
        found = await self._entry(self._key("entries", key))
        return None if found is None else CoordinatorEntry(key, found.value, found.revision)

    async def delete(self, key: str, *, revision: int | None = None) -> bool:
        check_key(key)
        name = self._key("entries", key)
        if revision is None:
            answer = await self._call("kv/deleterange", {"key": name}, may_repeat=False)
            return int(answer.get("deleted", 0)) > 0
        transaction = {"compare": [_is_at(name, revision)], "success": [{"request_delete_range": {"key": name}}]}
        return bool((await self._call("kv/txn", transaction, may_repeat=False)).get("succeeded"))

    async def entries(self, prefix: str) -> list[CoordinatorEntry]:
        check_key(prefix)
        return (await self._under(prefix))[0]

    async def watch(self, prefix: str) -> AsyncGenerator[EntryChange]:
        check_key(prefix)
        known: dict[str, CoordinatorEntry] = {}
        while True:
            try:
                entries, revision = await self._under(prefix)
                found = {entry.key: entry for entry in entries}
                for change in differences(known, found):
                    yield change
                known = found
                async with aclosing(self._changes(prefix, revision + 1)) as changes:
                    async for change, entry in changes:
                        known.pop(change.key, None)
                        if entry:
                            known[change.key] = entry
                        yield change
            except CoordinatorUnavailable:
                await asyncio.sleep(_PAUSE_S)

    async def _changes(
        self, prefix: str, first: int
    ) -> AsyncGenerator[tuple[EntryChange, CoordinatorEntry | None]]:
        """Yield every change since a revision.

        Ends after a time without changes; the caller then compares again.
        """
        range_request = self._range(prefix) | {"start_revision": str(first)}
        async with aclosing(
            self._members.follow("watch", {"create_request": range_request}, _SILENCE_S)
        ) as answers:
            async for answer in answers:
                if answer.get("canceled"):
                    return
                for event in answer.get("events", ()):
                    entry = self._named(_entry(event["kv"]))
                    if event.get("type") == "DELETE":
                        yield EntryChange(entry.key, None), None
                    else:
                        yield EntryChange(entry.key, entry.value), entry

    async def _under(self, prefix: str) -> tuple[list[CoordinatorEntry], int]:
        range_request = self._range(prefix) | {"limit": str(ENTRIES_MAX)}
        answer = await self._call("kv/range", range_request)
        return sorted(map(self._named, _entries(answer)), key=lambda entry: entry.key), _revision(answer)

    def _range(self, prefix: str) -> dict[str, str]:
        begin = f"{self._prefix}/entries/{prefix}".encode()
        return {"key": _text(begin), "range_end": _text(begin[:-1] + bytes([begin[-1] + 1]))}

    def _named(self, entry: CoordinatorEntry) -> CoordinatorEntry:
        return CoordinatorEntry(entry.key.removeprefix(f"{self._prefix}/entries/"), entry.value, entry.revision)

    async def _is_held(self, lease: HeldLease) -> bool:
        found = await self._entry(self._key("seats", lease.name))
        return found is not None and int(orjson.loads(found.value)["epoch"]) == lease.epoch

    async def _entry(self, key: str) -> CoordinatorEntry | None:
        return next(iter(_entries(await self._call("kv/range", {"key": key}))), None)

    async def _lease(self, ttl_s: float) -> str:
        """Create etcd's lease: in whole seconds, and at least as long as etcd's own election."""
        return str((await self._call("lease/grant", {"TTL": str(math.ceil(ttl_s))}))["ID"])

    async def _end(self, lease: str) -> None:
        # It ends by itself, and members do not know an ended one.
        with suppress(CoordinatorUnavailable):
            await self._call("lease/revoke", {"ID": lease})

    async def _call(self, what: str, body: dict[str, Any], *, may_repeat: bool = True) -> Answer:
        return await self._members.call(what, body, may_repeat=may_repeat)

    def _key(self, kind: str, name: str) -> str:
        return _text(f"{self._prefix}/{kind}/{name}".encode())


def _taking(
    lease_key: str, epochs: str, counter: CoordinatorEntry | None, epoch: int, mine: bytes, lease: str
) -> dict[str, Any]:
    """Return the transaction that takes a lease if it is free, with an epoch that no other holder has."""
    return {
        "compare": [_is_at(lease_key, 0), _is_at(epochs, counter.revision if counter else 0)],
        "success": [
            {"request_put": {"key": lease_key, "value": _text(mine), "lease": lease}},
            {"request_put": {"key": epochs, "value": _text(b"%d" % epoch)}},
        ],
        "failure": [{"request_range": {"key": lease_key}}],
    }


def _is_at(key: str, revision: int) -> dict[str, str]:
    """Return a comparison: the key's newest change has this revision; 0 means that the key does not exist."""
    return {"key": key, "target": "MOD", "mod_revision": str(revision), "result": "EQUAL"}


def _entries(answer: Answer) -> list[CoordinatorEntry]:
    return [_entry(each) for each in answer.get("kvs", ())]


def _entry(kv: dict[str, str]) -> CoordinatorEntry:
    key = base64.b64decode(kv["key"]).decode()
    return CoordinatorEntry(key, base64.b64decode(kv.get("value", "")), int(kv.get("mod_revision", 0)))


def _revision(answer: Answer) -> int:
    return int(answer["header"]["revision"])


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
