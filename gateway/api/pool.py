"""/admin/pool: the pool's backends and their states; add, remove, drain and scan."""

from typing import Annotated

from fastapi import APIRouter, Query

from gateway.admin import pool
from gateway.admin.fields import Facts
from gateway.admin.pool import ScanQuestion
from gateway.api.authority import Operator
from gateway.app_state import PoolLane
from gateway.parameters import Named
from gateway.settings.pool import PoolBackend

router = APIRouter(prefix="/admin/pool")


@router.get("")
async def list_backends(_: Operator, lane: PoolLane) -> list[Facts]:
    """List every backend with its state, models and queue, without its key."""
    return [backend.as_data() for backend in lane.pool.backends()]


@router.post("/backends")
async def add_backend(authority: Operator, lane: PoolLane, backend: PoolBackend) -> Facts:
    """Add a backend to the pool, also across restarts; answers after its first probe."""
    return await pool.add_backend(authority, lane.pool, backend)


@router.post("/backends/{name}/remove")
async def remove_backend(authority: Operator, lane: PoolLane, name: Named) -> Facts:
    """Remove a backend at once; its running requests finish."""
    await pool.remove_backend(authority, lane.pool, name)
    return {"removed": name}


@router.post("/backends/{name}/drain")
async def drain_backend(
    authority: Operator, lane: PoolLane, name: Named, undo: Annotated[bool, Query()] = False
) -> Facts:
    """Drain a backend, also across restarts; with `undo` enable it again."""
    return await pool.drain_backend(authority, lane.pool, name, undo=undo)


@router.post("/scan")
async def scan_hosts(authority: Operator, lane: PoolLane, question: ScanQuestion) -> Facts:
    """Scan hosts, or announcements in this network, for inference servers; each result has the entry that adds it."""
    return await pool.scan_hosts(authority, lane, question)
