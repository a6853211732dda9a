"""Answers that need no backend: stored ones, and ones that another caller of the same request is getting."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from accounting.metering.delivered import Delivered
from gateway.cache.coalesced_answer import CoalescedAnswer
from gateway.cache.fingerprint import Fingerprint, fingerprint, is_deterministic
from gateway.cache.recording_body import RecordingBody
from gateway.cache.semantic_index import Point, SemanticIndex
from gateway.cache.stored import AnswerStore, StoredAnswer
from gateway.dialects.openai import GENERATES
from gateway.identity.caller import Caller
from gateway.lanes.base import Answer, Call, Meter
from gateway.lanes.body import BytesBody
from gateway.settings.base import Privacy
from gateway.settings.cache import CacheSettings

Source = Literal["hit", "similar", "shared"]

Embed: TypeAlias = Callable[[Caller, Privacy, str], Awaitable[list[float] | None]]
"""The embedding of a text from an own lane, within the caller's policy; None if there is none now."""
Aliases: TypeAlias = Callable[[], Mapping[str, Sequence[str]]]
"""The models that each alias currently routes to."""

_FLIGHTS_MAX = 10_000


class Remote(Protocol):
    """The store of answers that several gateways share. If it is unavailable, it finds and stores nothing."""

    async def get(self, key: bytes) -> StoredAnswer | None: ...

    async def put(self, key: bytes, answer: StoredAnswer) -> None: ...


@dataclass(frozen=True, slots=True)
class Found:
    """An answer that costs nothing, and its source."""

    answer: Answer
    source: Source


class AnswerCache:
    """The cache that requests check before they go to a lane. One event loop owns it."""

    def __init__(
        self,
        settings: CacheSettings,
        remote: Remote | None = None,
        embed: Embed | None = None,
        aliases: Aliases = dict,
    ) -> None:
        """Create the cache.

        `aliases` returns what names currently route to; answers for other models are not found.
        """
        self._aliases = aliases
        self._keeps = settings.answers != "off"
        self._keeps_all = settings.answers == "all"
        self._shares = settings.coalesce
        self._store = AnswerStore(settings.entries_max, settings.bytes_max, settings.lasts_s)
        self._remote = remote
        self._embed = embed if settings.semantic_model and self._keeps else None
        self._meanings = SemanticIndex(settings.similarity_min, settings.lasts_s)
        self._flights: dict[bytes, CoalescedAnswer] = {}
        self._is_off = not self._keeps and not self._shares

    def applies(self, call: Call) -> bool:
        """Return whether the cache could help with the call; costs next to nothing."""
        if self._is_off:
            return False
        extras = call.request.millrace
        # Answers that give resume tokens to one caller, or are partial, are no use to others.
        if extras and (extras.cache is False or extras.resumable or extras.resume):
            return False
        return is_deterministic(call) or (self._keeps_all and call.kind in GENERATES)

    async def find(self, call: Call, caller: Caller, privacy: Privacy) -> "Found | Lead":
        """Return an answer, or the lead: the caller then gets one from a lane and shows it here."""
        wants_meaning = self._embed is not None and not call.features
        stands_for = self._aliases().get(call.request.model, ())
        mark = fingerprint(call, caller, privacy, with_context=wants_meaning, stands_for=stands_for)
        if self._keeps and (kept := await self._kept(mark.exact, privacy)):
            return Found(_as_answer(kept), "hit")
        shares = self._shares and is_deterministic(call)
        if shares and (answer := await self._shared(mark.exact)):
            return Found(answer, "shared")
        lead = Lead(self, mark, privacy, shares=shares)
        if self._embed is None or mark.context is None:
            return lead
        try:
            similar = await self._similar(lead, caller, privacy, self._embed)
        except BaseException:
            await lead.end()
            raise
        if similar is None:
            return lead
        await lead.end()
        return Found(_as_answer(similar), "similar")

    async def _shared(self, key: bytes) -> Answer | None:
        """Join another caller's answer in progress.

        If its leader leaves, the first caller to notice leads next.
        """
        while (flight := self._flights.get(key)) and flight.takes_more:
            if answer := await flight.follow():
                return answer
            if flight.has_failed:
                return None  # after a failure, every caller that waited asks by itself
        return None

    async def _similar(self, lead: "Lead", caller: Caller, privacy: Privacy, embed: Embed) -> StoredAnswer | None:
        context = lead.mark.context
        vector = await embed(caller, privacy, lead.mark.question)
        lead.point = self._meanings.place(vector) if vector else None
        if context is None or lead.point is None:
            return None
        key = self._meanings.nearest(context, lead.point)
        if key is None:
            return None
        kept = await self._kept(key, privacy)
        if kept is None:
            self._meanings.forget(context, key)
        return kept

    async def _kept(self, key: bytes, privacy: Privacy) -> StoredAnswer | None:
        if kept := self._store.get(key):
            return kept
        if self._remote is None or privacy == "private":
            return None
        if kept := await self._remote.get(key):
            self._store.put(key, kept)
        return kept

    # Called by leads.

    def begin(self, key: bytes, flight: CoalescedAnswer) -> bool:
        """Let others find the flight; return False if another one leads already, or there are too many.

        A flight that cannot be joined any more is replaced.
        """
        other = self._flights.get(key)
        if (other and other.takes_more) or len(self._flights) >= _FLIGHTS_MAX:
            return False
        self._flights[key] = flight
        return True

    def end(self, key: bytes, flight: CoalescedAnswer) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    @property
    def keeps(self) -> bool:
        return self._keeps

    def keep(self, lead: "Lead", answer: Answer, body: bytes) -> StoredAnswer | None:
        """Store a complete answer, if the settings say so."""
        if not self._keeps or answer.status != 200:
            return None
        meter, mark = answer.meter, lead.mark
        kept = StoredAnswer(answer.content_type, body, meter.prompt_tokens, meter.completion_tokens)
        self._store.put(mark.exact, kept)
        if lead.point and mark.context is not None:
            self._meanings.add(mark.context, lead.point, mark.exact)
        return kept

    async def keep_for_others(self, key: bytes, kept: StoredAnswer, privacy: Privacy) -> None:
        """Store it in Redis, too, if there is one; private answers stay in this process."""
        if self._remote and privacy != "private":
            await self._remote.put(key, kept)


class Lead:
    """The right and duty to get an answer for all callers that ask the same meanwhile. End it with `end`."""

    def __init__(self, answers: AnswerCache, mark: Fingerprint, privacy: Privacy, *, shares: bool) -> None:
        self.mark = mark
        self.point: Point | None = None
        self._privacy = privacy
        self._answers = answers
        self._kept: StoredAnswer | None = None
        self._flight: CoalescedAnswer | None = None
        if shares:
            flight = CoalescedAnswer(self._keep)
            self._flight = flight if answers.begin(mark.exact, flight) else None

    def show(self, answer: Answer, *, is_paid: bool = False) -> Answer:
        """Share the leader's answer with all followers, and store it once it is complete."""
        if self._flight:
            return self._flight.lead(answer, is_paid=is_paid)
        if not self._answers.keeps:
            return answer
        body = RecordingBody(answer, self._keep)
        return Answer(answer.status, answer.content_type, body, answer.meter, answer.headers)

    def told(self) -> tuple[Delivered, ...]:
        """Return the part of a paid answer that followers received."""
        return self._flight.told() if self._flight else ()

    async def end(self, *, has_failed: bool = False) -> None:
        """End the lead in any case; no caller waits for it after that."""
        if self._flight:
            self._answers.end(self.mark.exact, self._flight)
            self._flight.abandon(has_failed=has_failed)
        kept, self._kept = self._kept, None
        if kept:
            await self._answers.keep_for_others(self.mark.exact, kept, self._privacy)

    def _keep(self, answer: Answer, body: bytes) -> None:
        self._kept = self._answers.keep(self, answer, body)


def _as_answer(kept: StoredAnswer) -> Answer:
    meter = Meter(
        prompt_tokens=kept.prompt_tokens,
        completion_tokens=kept.completion_tokens,
        cached_tokens=kept.prompt_tokens,
        source="upstream",
        is_complete=True,
    )
    return Answer(200, kept.content_type, BytesBody(kept.body), meter)
