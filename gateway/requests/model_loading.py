"""Loads a model before it is needed, or unloads it, if its backend supports that."""

import asyncio
from dataclasses import dataclass, replace

from cluster.controller import Controller
from gateway.dialects.model_loading import Upkeep
from gateway.dialects.openai import read_request
from gateway.identity.audit import Actor, AuditLog
from gateway.identity.caller import HOME, Caller
from gateway.lanes.base import Call, Lanes, Offer
from gateway.lanes.cluster import residence
from gateway.lanes.pool.members import Pool
from gateway.lanes.pool.residence import can_be_told, reside
from gateway.lanes.preemptible.admission import OWN
from gateway.lanes.preemptible.jobs import PreemptibleJobs
from gateway.limits.admission import Admission
from gateway.limits.limits import Limits
from gateway.requests.attempt import Attempts
from gateway.requests.no_backend import no_backend_error
from gateway.requests.queue_slot import QueueSlots
from gateway.routing.decision import sift
from gateway.routing.need import need_of
from gateway.routing.router import Router
from runtime.errors import LaneFailed

# Loading a model may take this multiple of the timeout for a first byte.
_LOADING_TIMES = 5


@dataclass(frozen=True, slots=True)
class ModelLoading:
    """Loads and unloads models. `first_byte_s` is the setting of the pool, in seconds."""

    admission: Admission
    jobs: PreemptibleJobs
    limits: Limits
    router: Router
    slots: QueueSlots
    attempts: Attempts
    audit: AuditLog
    lanes: Lanes
    pool: Pool
    controller: Controller
    first_byte_s: float

    async def look_after(self, caller: Caller, request_id: str, upkeep: Upkeep, address: str = "") -> None:
        """Return when the model is loaded or unloaded, or if no action is needed: other backends load on request.

        It counts as a request within the caller's limits. Only instance admins can unload a model that others may be
        using, or set how long it stays loaded; for other callers the backend decides. `address` is the caller's
        address. Raises the same errors as a request to the model.
        """
        self.admission.enter()
        try:
            if self.jobs.stays:
                await self.jobs.make_way()
            ticket = await self.limits.enter(caller, upkeep.model, 0)
            is_served = False
            try:
                await self._carry_out(caller, request_id, upkeep, address)
                is_served = True
            finally:
                ticket.leave(0, 0, is_served=is_served)
        finally:
            self.admission.leave()

    async def _carry_out(self, caller: Caller, request_id: str, upkeep: Upkeep, address: str) -> None:
        call = Call(request_id, "chat", read_request("chat", upkeep.body), upkeep.body, caller.user_id)
        decision = self.router.explain(caller, call)
        having = _having(self.lanes, self.pool, caller, call)
        if not (decision.candidates or (having and upkeep.action == "unload")):
            raise no_backend_error(call, decision, self.slots.first_pause(decision))
        is_admin = caller.role == "admin" and caller.organization_id == HOME
        if upkeep.action == "unload":
            if is_admin and having:
                await self._put_away(having, upkeep, Actor(f"user:{caller.user_id}", address))
        elif (best := decision.candidates[0].offer).lane in OWN:
            await self._tell(best, upkeep if is_admin else replace(upkeep, keep_alive=None))

    async def _put_away(self, offers: list[Offer], upkeep: Upkeep, by: Actor) -> None:
        """Unload at every backend, even if one fails; the audit log has it before. Raises the first failure."""
        where = {"backends": [offer.backend for offer in offers]}
        await asyncio.to_thread(self.audit.add, by, "model.unload", f"model:{upkeep.model}"[:200], where)
        failures: list[LaneFailed] = []
        for offer in offers:
            try:
                await self._tell(offer, upkeep)
            except LaneFailed as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    async def _tell(self, offer: Offer, upkeep: Upkeep) -> None:
        try:
            timeout_s = _LOADING_TIMES * self.first_byte_s
            if offer.lane == "cluster":
                await residence.reside(self.controller, offer, upkeep, timeout_s)
            else:
                await reside(self.pool, offer, upkeep, timeout_s)
        except LaneFailed as error:
            self.attempts.note_error(offer, error)
            raise


def _having(lanes: Lanes, pool: Pool, caller: Caller, call: Call) -> list[Offer]:
    """Return every backend that can load or unload this model for the caller, including drained ones."""
    offers = [offer for offer in pool.offers(call.request.model) if can_be_told(pool, offer)]
    offers += lanes["cluster"].offers(call.request.model)
    passed, rejections = sift(need_of(call, caller, 0), caller, offers)
    return passed + [rejected.offer for rejected in rejections if rejected.objection.check == "draining"]
