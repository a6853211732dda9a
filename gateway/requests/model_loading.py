"""Loads a model before it is needed, or unloads it, if its backend supports that."""

import asyncio
from dataclasses import replace

from gateway.dialects.model_loading import Upkeep
from gateway.dialects.openai import read_request
from gateway.identity.audit import Actor
from gateway.identity.caller import HOME, Caller
from gateway.lanes.base import Call, Offer
from gateway.lanes.pool.lane import PoolLane
from gateway.lanes.pool.members import Pool
from gateway.lanes.pool.residence import can_be_told, reside
from gateway.requests.attempt import note_error
from gateway.requests.no_backend import no_backend_error
from gateway.requests.queue_slot import first_pause
from gateway.routing.decision import sift
from gateway.routing.need import need_of
from gateway.services import Services
from runtime.errors import LaneFailed

# Loading a model may take this multiple of the timeout for a first byte.
_LOADING_TIMES = 5


async def look_after(
    services: Services, caller: Caller, request_id: str, upkeep: Upkeep, address: str = ""
) -> None:
    """Return when the model is loaded or unloaded, or if no action is needed: other backends load on request.

    It counts as a request within the caller's limits. Only instance admins can unload a model that others may be
    using, or set how long it stays loaded; for other callers the backend decides. `address` is the caller's
    address. Raises the same errors as a request to the model.
    """
    services.admission.enter()
    try:
        if services.preemptible_jobs.stays:
            await services.preemptible_jobs.make_way()
        ticket = await services.limits.enter(caller, upkeep.model, 0)
        is_served = False
        try:
            await _carry_out(services, caller, request_id, upkeep, address)
            is_served = True
        finally:
            ticket.leave(0, 0, is_served=is_served)
    finally:
        services.admission.leave()


async def _carry_out(services: Services, caller: Caller, request_id: str, upkeep: Upkeep, address: str) -> None:
    call = Call(request_id, "chat", read_request("chat", upkeep.body), upkeep.body, caller.user_id)
    decision = services.router.explain(caller, call)
    lane = services.lanes.get("pool")
    pool = lane.pool if isinstance(lane, PoolLane) else None
    having = _having(pool, caller, call) if pool else []
    if not (decision.candidates or (having and upkeep.action == "unload")):
        raise no_backend_error(call, decision, first_pause(services, decision))
    if pool is None:
        return
    is_admin = caller.role == "admin" and caller.organization_id == HOME
    if upkeep.action == "unload":
        if is_admin and having:
            await _put_away(services, pool, having, upkeep, Actor(f"user:{caller.user_id}", address))
    elif (best := decision.candidates[0].offer).lane == "pool":
        await _tell(services, pool, best, upkeep if is_admin else replace(upkeep, keep_alive=None))


def _having(pool: Pool, caller: Caller, call: Call) -> list[Offer]:
    """Return every backend that can load or unload this model for the caller, including drained ones."""
    offers = [offer for offer in pool.offers(call.request.model) if can_be_told(pool, offer)]
    passed, rejections = sift(need_of(call, caller, 0), caller, offers)
    return passed + [rejected.offer for rejected in rejections if rejected.objection.check == "draining"]


async def _put_away(services: Services, pool: Pool, offers: list[Offer], upkeep: Upkeep, by: Actor) -> None:
    """Unload at every backend, even if one fails; the audit log has it before. Raises the first failure."""
    where = {"backends": [offer.backend for offer in offers]}
    await asyncio.to_thread(services.directory.audit.add, by, "model.unload", f"model:{upkeep.model}"[:200], where)
    failures: list[LaneFailed] = []
    for offer in offers:
        try:
            await _tell(services, pool, offer, upkeep)
        except LaneFailed as failure:
            failures.append(failure)
    if failures:
        raise failures[0]


async def _tell(services: Services, pool: Pool, offer: Offer, upkeep: Upkeep) -> None:
    try:
        await reside(pool, offer, upkeep, _LOADING_TIMES * services.settings.pool.first_byte_s)
    except LaneFailed as error:
        note_error(services, offer, error)
        raise
