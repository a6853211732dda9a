"""A model's rates at one backend, learned from its answers: seconds to the first token and for each next one.

first token = overhead (network, template) + new prompt tokens x seconds + known ones x seconds + wait
wait        = the longer one of: prompts that were sent before it; requests before it, until a slot is free
each token  = base + part for every request that is being answered
"""

from msgspec import Struct

from gateway.lanes.base import Offer
from gateway.routing.fit import SETTLED, Fit
from gateway.routing.priors import Speed, prior_of
from gateway.settings import LaneName

_ALPHA = 0.1
# The wait for a starting backend that does not say how long the start takes.
STARTING_S = 10.0
_USUAL_ANSWER_TOKENS = 256

_ASSUMED_BATCH_SHARE = 0.05
# For a backend that does not report its slots: the share that is assumed of the wait computed for the slots
# seen in use. Providers have room for every request.
_ASSUMED_SERIAL: dict[LaneName, float] = {"cluster": 0.2, "pool": 0.2, "cloud": 0.001, "market": 0.2}
# The relative error of predicted first tokens.
_ASSUMED_SPREAD = 0.2
_LEAST_S = 0.001
# A backend that was not chosen this many times in a row may have changed.
_OLD_AFTER = 200
# The cost of a previously sent token as a share of a new one's: some have left the backend's cache.
_ASSUMED_KNOWN_SHARE = 0.1
# Once rates have settled, a busy backend's answers are sampled at this interval: learning from one takes 20 us.
_LOOK_EVERY_S = 0.01
_STRIDE_MAX = 256


class Load(Struct, frozen=True, gc=False):
    """The load ahead of a request when it was sent.

    `slots` are the requests that the backend answers in parallel, as reported or as observed; None if unknown.
    `beside` counts all other requests there; `pending_tokens` are the prompt tokens of those without an answer
    yet. `stalled_s` is how long no request there has got what this request would wait for.
    """

    prompt_tokens: int
    matched_tokens: int
    pending_tokens: int
    beside: int
    slots: int | None
    is_resident: bool
    is_stream: bool
    stalled_s: float = 0.0


class Rates:
    """One model's rates at one backend. `spread` is the relative error of its first tokens.

    `regret_s` and `loading_since_s` concern a model that is not loaded there. The last answer began at `heard_s`.
    """

    __slots__ = (
        "_looked_s",
        "_passed",
        "_prior",
        "_serial",
        "_stride",
        "each",
        "first",
        "heard_s",
        "loading_since_s",
        "passed_over",
        "regret_s",
        "service_s",
        "size_bytes",
        "slots",
        "spread",
        "told",
    )

    def __init__(self, offer: Offer) -> None:
        self.slots = offer.slots
        self.told = (offer.first_token_s, offer.token_s)
        self.size_bytes = offer.size_bytes
        self._serial = 1.0 if offer.slots else _ASSUMED_SERIAL[offer.lane]
        self._assume(prior_of(offer))
        self.spread = _ASSUMED_SPREAD
        self.passed_over = 0
        self.regret_s = 0.0
        self.loading_since_s: float | None = None
        self.heard_s = 0.0
        self._passed = 0
        self._stride = 1
        self._looked_s = 0.0

    @property
    def has_answered(self) -> bool:
        """Whether anything was learned from answers."""
        return self.first.seen > 0

    @property
    def speed(self) -> Speed | None:
        """Return the speed of a single request, from its answers or the backend's plan; None without either."""
        if not self.has_answered and not any(self.told):
            return None
        overhead_s, prompt_s, _, _ = self.first.rates
        return Speed(overhead_s, prompt_s, self.token_alone_s)

    @property
    def token_alone_s(self) -> float:
        """Return the seconds per token of a request that is alone at the backend."""
        return sum(self.each.rates)

    def expect(self, prior: Speed) -> None:
        """Use this prior until the first answer."""
        if not self.has_answered and prior != self._prior:
            self._assume(prior)

    def _assume(self, prior: Speed) -> None:
        self._prior = prior
        overhead_s, prompt_s, token_s = prior
        self.first = Fit((overhead_s, prompt_s, _ASSUMED_KNOWN_SHARE * prompt_s, self._serial))
        self.each = Fit((token_s * (1 - _ASSUMED_BATCH_SHARE), token_s * _ASSUMED_BATCH_SHARE))
        self.service_s = overhead_s + _USUAL_ANSWER_TOKENS * token_s

    def is_due(self, now_s: float) -> bool:
        """Whether to learn from one more answer: from each until rates have settled, and while answers are few.

        Otherwise from one of every `_stride` answers, which samples slow and fast ones evenly. Sampling the first
        after a pause would not.
        """
        self._passed += 1
        since_s = now_s - self._looked_s
        if self._passed < self._stride and since_s < 4 * _LOOK_EVERY_S:
            return False
        if since_s > _LOOK_EVERY_S:
            self._stride = max(1, self._stride // 2)
        elif self.first.seen > SETTLED and since_s < _LOOK_EVERY_S / 2:
            self._stride = min(_STRIDE_MAX, 2 * self._passed)
        self._passed = 0
        self._looked_s = now_s
        return True

    def was_passed_over(self) -> None:
        """Note that another backend was chosen.

        Old measurements fade, so that this one slowly gets another chance.
        """
        self.passed_over += 1
        if self.passed_over % _OLD_AFTER == 0:
            self.first.fade()
            self.each.fade()

    def holds_for(self, offer: Offer) -> bool:
        """Return whether the rates belong to the backend's current configuration: its plan and slots."""
        return self.slots == offer.slots and self.told == (offer.first_token_s, offer.token_s)

    def predict(self, load: Load) -> tuple[float, float, float]:
        """Return the seconds to the first token, the part spent waiting, and the seconds for each further token.

        Never less for more load. One function, because it runs for every candidate of every request.
        """
        overhead_s, prompt_s, known_s, serial = self.first.rates
        known, beside, slots = load.matched_tokens, load.beside, load.slots
        if slots is None:
            queue_s = beside * self.service_s
            together = beside + 1
        else:
            queue_s = (beside - slots + 1) * self.service_s / slots if beside >= slots else 0.0
            together = slots if beside >= slots else beside + 1
        wait_s = prompt_s * load.pending_tokens
        if serial * queue_s > wait_s:
            wait_s = serial * queue_s
        if load.stalled_s > wait_s:
            # Assume that a stall lasts as long again as it has lasted, whatever was usual before.
            wait_s = load.stalled_s
        own_s = overhead_s + prompt_s * (load.prompt_tokens - known) + known_s * known
        base_s, each_s = self.each.rates
        return own_s + wait_s, wait_s, base_s + each_s * together

    def saw_first_token(self, load: Load, seconds: float) -> None:
        """Learn from an answer whose first token came after `seconds`, unless its model had to be loaded."""
        if not load.is_resident:
            return
        expected_s, _, _ = self.predict(load)
        error_share = abs(seconds - expected_s) / max(seconds, expected_s, _LEAST_S)
        self.spread += _ALPHA * (error_share - self.spread)
        self.first.observe(self._causes(load), seconds)

    def saw_end(self, load: Load, beside: float, first_s: float | None, duration_s: float, tokens: int) -> None:
        """Learn from an answer that took `duration_s` and has `tokens`.

        `beside` is how many other requests there were on average. Without `first_s` the answer came as a whole.
        """
        if first_s is None:
            # The time before the first token is not visible: subtract the answer's time at the known speed.
            _, _, token_s = self.predict(load)
            self.saw_first_token(load, max(0.0, duration_s - tokens * token_s))
            first_s, _, _ = self.predict(load)
        spoken_s = duration_s - first_s
        if tokens > 1 and spoken_s > 0:
            self.each.observe((1.0, _together(beside, load.slots)), spoken_s / (tokens - 1))
        service_s = max(0.0, spoken_s) + self._own_s(load)
        self.service_s += _ALPHA * (service_s - self.service_s)

    def _own_s(self, load: Load) -> float:
        """Return the time from a request's turn to its first token."""
        overhead_s, prompt_s, known_s, _ = self.first.rates
        known = load.matched_tokens
        return overhead_s + prompt_s * (load.prompt_tokens - known) + known_s * known

    def _queue_s(self, load: Load) -> float:
        """Return the service time ahead, until enough slots are free; all of it if the slot count is unknown."""
        if load.slots is None:
            return load.beside * self.service_s
        return max(0, load.beside - load.slots + 1) * self.service_s / load.slots

    def _causes(self, load: Load) -> tuple[float, float, float, float]:
        """Return the causes of a first token's time. Only the longer of the two predicted waits counts."""
        known, queue_s = load.matched_tokens, self._queue_s(load)
        new = load.prompt_tokens - known
        _, prompt_s, _, serial = self.first.rates
        if serial * queue_s > prompt_s * load.pending_tokens:
            return 1.0, new, known, queue_s
        return 1.0, new + load.pending_tokens, known, 0.0


def _together(beside: float, slots: int | None) -> float:
    return beside + 1 if slots is None else min(beside + 1, slots)
