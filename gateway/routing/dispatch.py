"""One request at one backend: its wait, and learning from its times."""

from collections.abc import Callable

from msgspec import Struct

from gateway.errors import LaneBusy, LaneLimited, LaneUnreachable
from gateway.lanes.base import Offer
from gateway.routing.decision import Candidate
from gateway.routing.health import Health
from gateway.routing.memory import Memory
from gateway.routing.prediction import Known, Prediction
from runtime.errors import LaneFailed


class Dispatch(Struct):
    """Created by Router.began; ends with one of succeeded, failed, refused or left. Later calls do nothing.

    Without a `chosen` candidate there is no prediction, and only the outcome is learned.
    """

    label: str
    model: str
    """The model's name at the backend."""
    clock: Callable[[], float]
    record: Health
    memory: Memory
    chosen: Candidate | None = None
    key_id: str = ""
    began_s: float = 0.0
    first_s: float | None = None
    pending_tokens: int = 0
    """The tokens of its prompt, counted until its answer begins."""
    teaches: bool = False
    has_ended: bool = False

    def begin(self) -> None:
        self.began_s = now_s = self.clock()
        self.record.began(self.model, now_s)
        load = self.chosen.predicted.load if self.chosen else None
        if load and load.is_stream:
            # A whole answer does not show when its prompt was processed, so it is not counted.
            self.pending_tokens = max(1, load.prompt_tokens - load.matched_tokens)
            self.record.owes(self.pending_tokens, now_s)

    def first_byte(self, seconds: float | None = None) -> None:
        """Note that the answer has begun, by the clock or after `seconds` at this backend."""
        if self.has_ended or self.first_s is not None:
            return
        now_s = self.clock()
        self.first_s = first_s = now_s - self.began_s if seconds is None else seconds
        record, chosen = self.record, self.chosen
        record.answered_s = now_s
        if self.pending_tokens:
            self._is_through()
        if not record.breakers.are_clear:
            record.breakers.succeeded(self.model, now_s)
        record.speaking = speaking = record.speaking + 1
        if speaking > record.spoke_most:
            record.spoke_most = speaking
        if chosen is None or chosen.known is None:
            return
        predicted = chosen.predicted
        chosen.known.rates.heard_s = now_s
        if predicted.load.is_stream and chosen.known.rates.is_due(now_s):
            self.teaches = True
            self.memory.accuracy.add(
                self.label, chosen.offer.lane, "first_token", predicted.first_token_s, first_s
            )
            chosen.known.rates.saw_first_token(predicted.load, first_s)

    def succeeded(self, tokens: int = 0, cached_tokens: int | None = None) -> None:
        """Note a complete answer with the meter's counts. `cached_tokens` is only for backends that report it."""
        if self._ends():
            now_s, chosen = self.clock(), self.chosen
            self.record.succeeded(self.model, now_s)
            if chosen is None or chosen.known is None:
                return
            is_stream = chosen.predicted.load.is_stream
            if self.teaches or (not is_stream and chosen.known.rates.is_due(now_s)):
                self._learn(chosen, chosen.known, now_s - self.began_s, tokens, cached_tokens)

    def failed(self) -> None:
        """Note that the backend broke off."""
        if self._ends():
            self.record.failed(self.model, self.clock())

    @property
    def is_mute(self) -> bool:
        """Return whether the backend has begun no answer for this model since this request, nor is sending one."""
        known = self.chosen.known if self.chosen else None
        return known is not None and not self.record.speaking and known.rates.heard_s <= self.began_s

    def gave_up(self) -> None:
        """Note that no first byte came in time: the next request there is expected to take as long."""
        chosen, seconds = self.chosen, self.clock() - self.began_s
        if chosen and chosen.known and chosen.predicted.load.is_stream and not self.has_ended:
            chosen.known.rates.saw_first_token(chosen.predicted.load, seconds)
        self.failed()

    def refused(self, error: LaneFailed) -> None:
        """Note that the backend did not answer.

        A busy backend is healthy, and gets a pause if it asked for one.
        """
        if isinstance(error, LaneBusy):
            if error.asks_for_pause and self._ends():
                is_limit = isinstance(error, LaneLimited)
                self.record.asked(self.model, self.clock(), error.retry_after_s, is_limit=is_limit)
            self.left()
        elif isinstance(error, LaneUnreachable) and self._ends():
            self.record.unreachable(self.clock())
        else:
            self.failed()

    def left(self) -> None:
        """Note an end without a verdict.

        The caller disconnected, the request was invalid, or the backend was busy.
        """
        if self._ends():
            self.record.left(self.model, self.clock())

    def _ends(self) -> bool:
        if self.has_ended:
            return False
        self.has_ended = True
        if self.pending_tokens:
            self._is_through()
        if self.first_s is not None:
            self.record.speaking -= 1
        return True

    def _is_through(self) -> None:
        self.record.pending_tokens -= self.pending_tokens
        self.pending_tokens = 0

    def _learn(
        self, chosen: Candidate, known: Known, duration_s: float, tokens: int, cached_tokens: int | None
    ) -> None:
        load, memory, rates = chosen.predicted.load, self.memory, known.rates
        memory.lengths.observe(self.key_id, chosen.offer.model, tokens)
        if cached_tokens is not None and load.matched_tokens:
            memory.prefixes.learn_size(self.label, load.matched_tokens, cached_tokens)
        first_s = self.first_s if load.is_stream else None
        if tokens > 1:
            self._compare(chosen.predicted, chosen.offer, duration_s, first_s, tokens)
        if not load.is_resident:
            rates.regret_s, rates.loading_since_s = 0.0, None
        else:
            beside = (load.beside + self.record.in_flight) / 2
            rates.saw_end(load, beside, first_s, duration_s, tokens)

    def _compare(
        self, predicted: Prediction, offer: Offer, duration_s: float, first_s: float | None, tokens: int
    ) -> None:
        if first_s is None:
            expected_s = predicted.first_token_s + tokens * predicted.token_s
            self.memory.accuracy.add(self.label, offer.lane, "request", expected_s, duration_s)
        else:
            token_s = (duration_s - first_s) / (tokens - 1)
            self.memory.accuracy.add(self.label, offer.lane, "token", predicted.token_s, token_s)
