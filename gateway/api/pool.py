"""/admin/pool: the pool's backends and their states; add, remove, drain and scan."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from gateway.api.authority import Authority, Operator
from gateway.api.fields import Body, Named
from gateway.lanes.pool.announced import announced
from gateway.lanes.pool.kinds.catalogue import KINDS_OF_BACKEND
from gateway.lanes.pool.lane import PoolLane
from gateway.lanes.pool.scan import HOSTS_MAX, PORTS_MAX, Found, places, scan
from gateway.settings.pool import PoolBackend
from runtime.errors import NotFound, RequestInvalid

_MODELS_SHOWN = 50

router = APIRouter(prefix="/admin/pool")


class ScanQuestion(Body):
    """What to scan. `public` permits hosts outside of private networks; `add` adds the servers found."""

    hosts: list[Annotated[str, Field(min_length=1, max_length=253)]] = Field(default=[], max_length=HOSTS_MAX)
    ports: list[Annotated[int, Field(ge=1, le=65535)]] = Field(default=[], max_length=PORTS_MAX)
    mdns: bool = False
    public: bool = False
    add: bool = False


@router.get("")
async def list_backends(authority: Operator) -> list[dict[str, Any]]:
    """List every backend with its state, models and queue, without its key."""
    return [backend.as_data() for backend in _lane(authority).pool.backends()]


@router.post("/backends")
async def add_backend(authority: Operator, backend: PoolBackend) -> dict[str, Any]:
    """Add a backend to the pool, also across restarts; answers after its first probe."""
    pool = _lane(authority).pool
    pool.refuse_adding(backend)
    await _write_down(authority, "pool.add", backend.name)
    return (await pool.add(backend)).as_data()


@router.post("/backends/{name}/remove")
async def remove_backend(authority: Operator, name: Named) -> dict[str, Any]:
    """Remove a backend at once; its running requests finish."""
    pool = _lane(authority).pool
    pool.refuse_removing(name)
    await _write_down(authority, "pool.remove", name)
    await pool.remove(name)
    return {"removed": name}


@router.post("/backends/{name}/drain")
async def drain_backend(
    authority: Operator, name: Named, undo: Annotated[bool, Query()] = False
) -> dict[str, Any]:
    """Drain a backend, also across restarts; with `undo` enable it again."""
    pool = _lane(authority).pool
    pool.find(name)
    await _write_down(authority, "pool.undrain" if undo else "pool.drain", name)
    return (await pool.drain(name, draining=not undo)).as_data()


@router.post("/scan")
async def scan_hosts(authority: Operator, question: ScanQuestion) -> dict[str, Any]:
    """Scan hosts, or announcements in this network, for inference servers; each result has the entry that adds it.

    Raises RequestInvalid if there is neither a host nor `mdns`.
    """
    if not question.hosts and not question.mdns:
        raise RequestInvalid("hosts: name hosts to scan, or set mdns", param="hosts")
    lane = _lane(authority)
    targets = await places(question.hosts, question.ports, public=question.public) if question.hosts else []
    if question.mdns:
        targets = list(dict.fromkeys([*targets, *await announced()]))
    target = ", ".join(question.hosts[:5]) or "mdns"
    await _write_down(authority, "pool.scan", target)
    found = await scan(lane.probes, targets)
    return {"looked_at": len(targets), "found": [await _found(authority, lane, one, question) for one in found]}


async def _found(authority: Authority, lane: PoolLane, server: Found, question: ScanQuestion) -> dict[str, Any]:
    """Return one server; servers that are already in the pool are not added again."""
    here = next((b for b in lane.pool.backends() if b.settings.base_url == server.entry.base_url), None)
    is_added = False
    if question.add and here is None:
        lane.pool.refuse_adding(server.entry)
        await _write_down(authority, "pool.add", server.entry.name)
        await lane.pool.add(server.entry)
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


def _lane(authority: Authority) -> PoolLane:
    lane = authority.services.lanes.get("pool")
    if not isinstance(lane, PoolLane):
        raise NotFound("This gateway has no pool lane.")
    return lane


async def _write_down(authority: Authority, action: str, target: str) -> None:
    """Record the action before it is done, because an unrecorded action could not be traced."""
    await asyncio.to_thread(authority.directory.audit.add, authority.actor, action, f"backend:{target}"[:200])
