"""/admin/pauses: pause and resume buying on a lane to third parties' machines, or selling."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from gateway.api.authority import Operator
from gateway.app_state import Pauses
from gateway.routing.pauses import Pausable

router = APIRouter()


@router.get("/pauses")
async def list_pauses(_: Operator, pauses: Pauses) -> list[dict[str, Any]]:
    """List paused lanes, with time and author."""
    return [asdict(pause) for pause in pauses.now]


@router.put("/pauses/{name}")
async def pause(authority: Operator, pauses: Pauses, name: Pausable) -> dict[str, Any]:
    """Pause a lane or selling until it is resumed, also across restarts; running requests finish."""
    return asdict(await pauses.pause(name, authority.actor))


@router.delete("/pauses/{name}")
async def resume(authority: Operator, pauses: Pauses, name: Pausable) -> dict[str, str]:
    """Resume a paused lane, or selling."""
    await pauses.resume(name, authority.actor)
    return {"name": name}
