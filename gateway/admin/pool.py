"""The pool's backends: add, remove, drain and scan."""

from typing import Annotated

from pydantic import Field

from gateway.admin.authority import Authority
from gateway.admin.fields import Body, Facts
from gateway.lanes.pool.announced import announced
from gateway.lanes.pool.kinds.catalogue import KINDS_OF_BACKEND
from gateway.lanes.pool.lane import PoolLane
from gateway.lanes.pool.members import Pool
from gateway.lanes.pool.scan import HOSTS_MAX, PORTS_MAX, Found, places, scan
from gateway.settings.pool import PoolBackend
from runtime.errors import RequestInvalid

_MODELS_SHOWN = 50


class ScanQuestion(Body):
    """What to scan. `public` permits hosts outside of private networks; `add` adds the servers found."""

    hosts: list[Annotated[str, Field(min_length=1, max_length=253)]] = Field(default=[], max_length=HOSTS_MAX)
    ports: list[Annotated[int, Field(ge=1, le=65535)]] = Field(default=[], max_length=PORTS_MAX)
    mdns: bool = False
    public: bool = False
    add: bool = False


async def add_backend(authority: Authority, pool: Pool, backend: PoolBackend) -> Facts:
    """Add a backend, also across restarts; answers after its first probe. Raises RequestInvalid."""
    pool.refuse_adding(backend)
    await authority.record("pool.add", f"backend:{backend.name}")
    return (await pool.add(backend)).as_data()


async def remove_backend(authority: Authority, pool: Pool, name: str) -> None:
    """Remove a backend at once; its running requests finish. Raises NotFound, RequestInvalid."""
    pool.refuse_removing(name)
    await authority.record("pool.remove", f"backend:{name}")
    await pool.remove(name)


async def drain_backend(authority: Authority, pool: Pool, name: str, *, undo: bool = False) -> Facts:
    """Drain a backend, also across restarts; with `undo` enable it again. Raises NotFound."""
    pool.find(name)
    await authority.record("pool.undrain" if undo else "pool.drain", f"backend:{name}")
    return (await pool.drain(name, draining=not undo)).as_data()


async def scan_hosts(authority: Authority, lane: PoolLane, question: ScanQuestion) -> Facts:
    """Scan hosts, or announcements in this network, for inference servers; each result has the entry that adds it.

    Raises RequestInvalid if there is neither a host nor `mdns`.
    """
    if not question.hosts and not question.mdns:
        raise RequestInvalid("hosts: name hosts to scan, or set mdns", param="hosts")
    targets = await places(question.hosts, question.ports, public=question.public) if question.hosts else []
    if question.mdns:
        targets = list(dict.fromkeys([*targets, *await announced()]))
    target = ", ".join(question.hosts[:5]) or "mdns"
    await authority.record("pool.scan", f"backend:{target}")
    found = await scan(lane.probes, targets)
    return {"looked_at": len(targets), "found": [await _found(authority, lane, one, question) for one in found]}


async def _found(authority: Authority, lane: PoolLane, server: Found, question: ScanQuestion) -> Facts:
    """Return one server; servers that are already in the pool are not added again."""
    here = next((b for b in lane.pool.backends() if b.settings.base_url == server.entry.base_url), None)
    is_added = False
    if question.add and here is None:
        await add_backend(authority, lane.pool, server.entry)
        is_added = True
    return {
        "kind": server.kind,
        "title": KINDS_OF_BACKEND[server.kind].title,
        "base_url": server.entry.base_url,
        "models": list(server.models[:_MODELS_SHOWN]),
        "note": server.note,
        "in_pool_as": here.settings.name if here else server.entry.name if is_added else None,
        "added": is_added,
        "entry": server.entry.model_dump(mode="json", exclude_defaults=True),
    }
