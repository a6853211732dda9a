"""/admin/pauses: buying on a lane to other people's machines, or selling, stopped until it is resumed."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from gateway.api.authority import Operator
from gateway.routing.pauses import Pausable

router = APIRouter()


@router.get("/pauses")
async def list_pauses(authority: Operator) -> list[dict[str, Any]]:
    """What rests now, since when, and who said so."""
    return [asdict(pause) for pause in authority.services.pauses.now]


@router.put("/pauses/{name}")
async def pause(authority: Operator, name: Pausable) -> dict[str, Any]:
    """Begin nothing new on a lane, or sell nothing, until it is resumed, over restarts, too; what runs goes on."""
    return asdict(await authority.services.pauses.pause(name, authority.actor))


@router.delete("/pauses/{name}")
async def resume(authority: Operator, name: Pausable) -> dict[str, str]:
    """Let a paused lane, or selling, go on."""
    await authority.services.pauses.resume(name, authority.actor)
    return {"name": name}
