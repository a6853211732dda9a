"""The task that decides which deployments are loaded: it loads those that are asked for and unloads others for them."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import structlog

from cluster.control.roster import Roster
from cluster.control.supervisor import RETRY_PAUSES_S, Supervisor
from cluster.errors import ClusterUnavailable, ModelDoesNotFit
from cluster.plans.evictions import Room, Tenant, WantedModel, make_room, make_rooms, resolve
from cluster.plans.planned import Member

log = structlog.get_logger(__name__)

# A loaded deployment stays this long before others may take its memory.
RESIDENCE_S = 20.0
# Answers of a deployment that is stopped may take this much longer.
DRAIN_S = 30.0
_LOOK_AGAIN_S = 0.25
# Idle times may be longer than timers can be.
_LOOK_AT_LEAST_EVERY_S = 3600.0
# Free memory changes all the time. If nothing else has changed, a decision is made again after this time.
_DECIDE_AGAIN_S = 5.0

_LAST = -1

AnySupervisor = Supervisor[Any]


class Residency:
    """Starts and ends the tasks of all deployments. A deployment takes memory only while its task runs.

    `supervisors` may grow and shrink.
    """

    def __init__(self, supervisors: Sequence[AnySupervisor], roster: Roster, residence_s: float) -> None:
        self._supervisors = supervisors
        self._roster = roster
        self._residence_s = residence_s
        self._tasks: dict[AnySupervisor, asyncio.Task[None]] = {}
        # Those that are being unloaded.
        self._leaving: dict[AnySupervisor, asyncio.Task[None]] = {}
        # Those that finish their answers because another one waits for their memory.
        self._closed: set[AnySupervisor] = set()
        # Those that another task moves: they stay as they are.
        self._held: set[AnySupervisor] = set()
        # By deployment: its failures when it was last looked at, how often it was unloaded because it did not fit, and
        # when it may be loaded again.
        self._judged: dict[AnySupervisor, int] = {}
        self._demotions: Counter[AnySupervisor] = Counter()
        self._not_before_s: dict[AnySupervisor, float] = {}
        # The last decision: the facts behind it, when it was made, and what must happen.
        self._decision: tuple[object, float, list[Room]] = (None, 0.0, [])
        self._changed = asyncio.Event()
        self._clock = time.monotonic

    def look_again(self) -> None:
        """Have the task look at all deployments."""
        self._changed.set()

    def watch(self, supervisor: AnySupervisor) -> None:
        """Learn of every change in a deployment's requests."""
        supervisor.gate.changed = self.look_again

    async def run(self) -> None:
        """Load and unload. Run until cancelled."""
        while True:
            self._changed.clear()
            try:
                wait_s = await self._look()
            except Exception:
                log.exception("deployments cannot be decided")
                wait_s = RETRY_PAUSES_S[2]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    async def close(self) -> None:
        """End the tasks of all deployments."""
        tasks = [*self._tasks.values(), *self._leaving.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def admit(self, supervisor: AnySupervisor) -> None:
        """Let a deployment take memory: start its task."""
        supervisor.last_error = None
        self._roster.resume(supervisor.subscription)
        supervisor.is_resident = True
        supervisor.gate.expect_load()
        self._tasks[supervisor] = asyncio.create_task(supervisor.run(), name=supervisor.deployment_name)

    @contextlib.contextmanager
    def held(self, supervisor: AnySupervisor) -> Iterator[None]:
        """Leave this deployment as it is meanwhile."""
        is_outer = supervisor not in self._held
        self._held.add(supervisor)
        try:
            yield
        finally:
            if is_outer:
                self._held.discard(supervisor)
            self.look_again()

    def forget(self, supervisor: AnySupervisor) -> None:
        """Forget a deployment that takes no memory any more."""
        self._closed.discard(supervisor)
        for known in (self._judged, self._demotions, self._not_before_s):
            known.pop(supervisor, None)

    async def drain(self, supervisor: AnySupervisor, reason: str, patience_s: float = DRAIN_S) -> None:
        """Let no new answers begin, let those in progress finish, and free the deployment's memory.

        Answers that take longer than `patience_s` seconds end as if the cluster was lost. If this is cancelled before
        they have ended, the deployment stays and new answers begin again.
        """
        supervisor.wanted_since_s = None
        if supervisor.is_resident:
            with self.held(supervisor):
                supervisor.readiness.close(reason)
                if supervisor.gate.running:
                    self._note(supervisor, "draining", f"finishes its answers: {reason}")
                try:
                    await supervisor.gate.wait_idle(patience_s)
                except asyncio.CancelledError:
                    if supervisor not in self._leaving:
                        self._closed.discard(supervisor)
                        await supervisor.readiness.open()
                    raise
                supervisor.gate.end_all()
                self._leave(supervisor, reason)
        if leaving := self._leaving.get(supervisor):
            await asyncio.shield(leaving)

    async def room_for(self, supervisor: AnySupervisor, without: AnySupervisor | None = None) -> Room:
        """Return what must happen before this deployment is loaded, if another one was unloaded.

        Its model must be known. Without machines there is room.
        """
        while self._leaving:
            await asyncio.wait(self._leaving.values())
        if not (members := self._members()):
            return Room()
        candidate = _candidate(supervisor)
        others = [other for other in self._residents() if other not in (supervisor, without)]
        tenants = [self._tenant(other) for other in others]
        return await asyncio.to_thread(lambda: make_room(candidate, resolve(tenants, members), members))

    async def _look(self) -> float | None:
        """Load and unload what can be. Return the seconds until the next look; None if only changes matter."""
        for supervisor in self._residents():
            if supervisor.serving is not None:
                supervisor.wanted_since_s = None
                self._demotions.pop(supervisor, None)
            if self._idle_left_s(supervisor) <= 0:
                self._leave(supervisor, f"idle for {supervisor.spec.idle_s:g} s")
        await self._demote()
        wanted = self._wanted()
        await self._reopen_all_but(await self._make_rooms(wanted) if wanted else set())
        await self._tell_unwanted()
        if wanted or self._leaving or self._closed or any(each.gate.waiting for each in self._supervisors):
            return _LOOK_AGAIN_S
        left_s = min(map(self._idle_left_s, self._residents()), default=float("inf"))
        return min(max(left_s, 0.01), _LOOK_AT_LEAST_EVERY_S) if left_s < float("inf") else None

    def _residents(self) -> list[AnySupervisor]:
        return [each for each in self._supervisors if each.is_resident and each not in self._leaving]

    def _idle_left_s(self, supervisor: AnySupervisor) -> float:
        """Return the seconds until a deployment has been idle for long enough to be unloaded."""
        spec, gate = supervisor.spec, supervisor.gate
        is_busy = gate.running or gate.waiting or supervisor.serving is None
        if spec.idle_s is None or spec.is_pinned or is_busy or self._stays(supervisor):
            return float("inf")
        return gate.of_use_s + spec.idle_s - self._clock()

    def _wanted(self) -> list[AnySupervisor]:
        """Return the deployments to load: first by priority, then by when they were asked for."""
        found = [
            each
            for each in self._supervisors
            if not each.is_resident
            and each.model
            and each.asked_since_s is not None
            and each not in self._leaving
            and each not in self._held
            and self._not_before_s.get(each, 0.0) <= self._clock()
        ]
        return sorted(found, key=lambda each: (-_priority(each), each.asked_since_s or 0.0))

    async def _make_rooms(self, wanted: list[AnySupervisor]) -> set[AnySupervisor]:
        """Load those that fit, and begin to unload others for the rest. Return those that must finish first."""
        members = self._members()
        if not members:
            for each in wanted:
                await each.readiness.tell("waiting", "no machine is in the cluster")
            return set()
        candidates = [_candidate(each) for each in wanted]
        rooms = await self._decide(candidates, members)
        named = {each.deployment_name: each for each in self._supervisors}
        must_finish: set[AnySupervisor] = set()
        for candidate, room in zip(candidates, rooms, strict=True):
            if (supervisor := named.get(candidate.name)) is None or supervisor.is_resident:
                continue
            must_finish |= await self._follow(supervisor, room, named)
        return must_finish

    async def _decide(self, candidates: list[WantedModel], members: list[Member]) -> list[Room]:
        """Return what must happen before each candidate is loaded. The last decision holds if no fact has changed."""
        residents = self._residents()
        tenants = [self._tenant(each) for each in residents]
        facts = (
            [(each.name, each.priority) for each in candidates],
            # In their order: it does not change with each request to the same deployment.
            [
                (each.name, each.running > 0, each.stays_s > 0, each.is_moving)
                for each in sorted(tenants, key=lambda tenant: tenant.rank)
            ],
            [each.epoch for each in residents],
            [member.node_id for member in members],
        )
        before, made_s, rooms = self._decision
        if facts != before or self._clock() - made_s >= _DECIDE_AGAIN_S:
            rooms = await asyncio.to_thread(make_rooms, candidates, tenants, members)
            self._decision = facts, self._clock(), rooms
        return rooms

    async def _follow(
        self, supervisor: AnySupervisor, room: Room, named: dict[str, AnySupervisor]
    ) -> set[AnySupervisor]:
        """Do what makes room for a deployment. Return those that must finish first."""
        going = [named[name] for name in room.unload if name in named]
        if room.unload and not room.wait_for:
            # The decision took a moment: the next look decides again if one is in use now.
            if not any(each.gate.running or self._stays(each) for each in going):
                for each in going:
                    self._leave(each, room.reason)
            names = " and ".join(each.model_name or "" for each in going)
            await supervisor.readiness.tell("waiting", f"waits until {names} is unloaded")
        elif room.error or (room.fits_now and not self._leaving):
            # With an error its own task says so, and tries again when machines come.
            asked = supervisor.gate.waiting
            why = f"{asked} request{'s wait' if asked > 1 else ' waits'} for it" if asked else "it was added"
            self._note(supervisor, "loading", f"is loaded: {why}")
            supervisor.gathers = False
            await supervisor.readiness.tell("planning", f"{supervisor.model_name} is being loaded")
            self.admit(supervisor)
        else:
            reason = room.reason or "waits until memory is free"
            if room.is_blocked and supervisor.failures:
                reason = f"it could not be loaded: {supervisor.last_error}. It is tried again when memory is free"
            await supervisor.readiness.tell("waiting", reason)
        waited_for = [named[name] for name in room.wait_for if name in named]
        return {each for each in waited_for if self._stays_s(each) <= 0 and not self._stays(each)}

    async def _reopen_all_but(self, must_finish: set[AnySupervisor]) -> None:
        for each in self._closed - must_finish - self._held:
            if each not in self._leaving:
                await each.readiness.open()
        for each in must_finish - self._closed - self._held:
            each.readiness.close("it finishes its answers, since another model waits for its memory")
            self._note(each, "draining", "finishes its answers: another model waits for its memory")
        self._closed = must_finish - self._held

    async def _tell_unwanted(self) -> None:
        """Set the status of deployments for which no request waits any longer: they are not loaded."""
        for each in self._supervisors:
            is_unasked = not each.is_resident and each.asked_since_s is None
            if each.model and is_unasked and each.readiness.status[0] == "waiting":
                await each.readiness.tell("unloaded", "a request loads it")

    async def _demote(self) -> None:
        """Unload those that cannot be deployed and would fit if others were unloaded: they wait to be asked for."""
        for each in self._residents():
            is_short = each.serving is None and isinstance(each.last_error, ModelDoesNotFit)
            if each.spec.is_pinned or not is_short or self._stays(each):
                continue
            if self._judged.get(each) != each.failures:
                self._judged[each] = each.failures
                fits = self._members() and (await self.room_for(each)).error is None
                # The decision took a moment: it may serve now, or be stopped.
                if fits and each.is_resident and each.serving is None and not self._stays(each):
                    times = self._demotions[each]
                    self._demotions[each] += 1
                    self._not_before_s[each] = self._clock() + RETRY_PAUSES_S[min(times, len(RETRY_PAUSES_S) - 1)]
                    if not times:
                        each.failures = 0  # Others may be unloaded for it once.
                    self._leave(each, f"{each.last_error} A request loads it and unloads others")
                    if each.gate.running:  # Answers that it has begun wait for it.
                        each.wanted_since_s = self._clock()

    def _tenant(self, supervisor: AnySupervisor) -> Tenant:
        claim, gate, spec = supervisor.claim(), supervisor.gate, supervisor.spec
        held: Any = {}
        if claim:
            serving = claim.serving
            held = {node_id: each.least_bytes for node_id, each in serving.items()} if serving else claim.least
        return Tenant(
            supervisor.deployment_name,
            supervisor.model_name or "",
            held,
            _priority(supervisor),
            gate.of_use_s,
            spec.is_pinned,
            gate.running,
            self._stays_s(supervisor),
            self._stays(supervisor),
        )

    def _stays(self, supervisor: AnySupervisor) -> bool:
        """Tell whether only who stops or replaces a deployment unloads it now."""
        return supervisor in self._held or supervisor.is_on_trial

    def _stays_s(self, supervisor: AnySupervisor) -> float:
        """Return the seconds for which a deployment keeps its memory. One that is being loaded keeps it."""
        if supervisor.serving is None:
            return 0.0 if supervisor.failures else self._residence_s
        return (supervisor.gate.loaded_s or 0.0) + self._residence_s - self._clock()

    def _members(self) -> list[Member]:
        """Return the machines with all memory that deployments may share.

        What a machine has not freed in time after an unload is no part of it.
        """
        sharing = [each for each in self._supervisors if each.is_resident or each in self._leaving]
        names = [each.deployment_name for each in sharing]
        present = self._roster.membership.present(*names)
        return [member for member in present if member.node_id not in self._roster.draining]

    def _leave(self, supervisor: AnySupervisor, reason: str) -> None:
        """Begin to unload a deployment. From now on no new answers begin."""
        if supervisor not in self._leaving:
            supervisor.is_resident, supervisor.wanted_since_s = False, None
            supervisor.readiness.close(reason)
            task = asyncio.create_task(
                self._unload(supervisor, reason), name=f"unload {supervisor.deployment_name}"
            )
            self._leaving[supervisor] = task

    async def _unload(self, supervisor: AnySupervisor, reason: str) -> None:
        try:
            if task := self._tasks.pop(supervisor, None):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            self._roster.suspend(supervisor.subscription)
            await supervisor.release()
        except ClusterUnavailable as error:
            log.warning("deployment not released", reason=error.message)
        finally:
            try:
                await supervisor.readiness.tell("unloaded", reason)
                await supervisor.readiness.open()
            finally:
                del self._leaving[supervisor]
            self._note(supervisor, "unloaded", f"was unloaded: {reason}")
            self.look_again()

    def _note(self, supervisor: AnySupervisor, kind: Any, text: str) -> None:
        log.info("deployment", name=supervisor.model_name, state=kind, reason=text)
        self._roster.chronicle.note(kind, f"{supervisor.model_name} {text}", supervisor.epoch)


def _candidate(supervisor: AnySupervisor) -> WantedModel:
    """Return a deployment that should be loaded. Its model must be known.

    None is unloaded for one that has just failed: it would disturb the others in vain.
    """
    claim = supervisor.claim()
    assert claim
    return WantedModel(claim.deployment, claim.model, claim.least, _priority(supervisor), claim.may_fit)


def _priority(supervisor: AnySupervisor) -> int:
    return _LAST if supervisor.serving is None and supervisor.failures else supervisor.spec.priority
