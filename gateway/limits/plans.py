"""The counters of one request: it takes from all of them at once, or from none."""

from collections.abc import Callable, Iterable

from gateway.identity.caller import Caller
from gateway.limits.counters import Counter
from gateway.limits.headers import Headers, Shown
from gateway.quota import Quota

# Largest number of keys whose plans are cached; beyond it all are dropped and made again on demand.
PLANS_MAX = 16_384

Shortage = tuple[Counter, int]
"""A counter and the amount needed from it."""


class Plan:
    """The counters of one key's requests for one model, by the measure that a request takes."""

    __slots__ = ("_shown", "counted", "requests", "slots", "spend", "tokens")

    def __init__(self, counters: Iterable[Counter]) -> None:
        by_measure: dict[str, list[Counter]] = {"requests": [], "tokens": [], "concurrency": [], "spend": []}
        for counter in counters:
            by_measure[counter.key.measure].append(counter)
        self.requests = tuple(by_measure["requests"])
        self.tokens = tuple(by_measure["tokens"])
        self.slots = tuple(by_measure["concurrency"])
        self.spend = tuple(by_measure["spend"])
        self.counted = self.requests + self.slots
        """Counters from which each request takes one."""
        self._shown = [tuple(map(Shown, some)) for some in (self.requests, self.tokens) if some]

    def take(self, tokens: int, now_s: float) -> bool:
        """Take one request, one slot and `tokens` tokens from every counter; a Ticket gives them back.

        Returns False and takes nothing if one counter is short.
        """
        if _lacks(self.counted, 1, now_s) or _lacks(self.tokens, tokens, now_s):
            return False
        for counter in self.requests:
            counter.left -= 1
            counter.taken += 1
            counter.tickets += 1
        for counter in self.slots:
            counter.left -= 1
            counter.held += 1
        for counter in self.tokens:
            counter.left -= tokens
            counter.held += tokens
            counter.tickets += 1
        for counter in self.spend:
            counter.tickets += 1
        return True

    def take_spend(self, amount_nano: int, now_s: float) -> bool:
        if shortages(self.spend, amount_nano, now_s):
            return False
        for counter in self.spend:
            counter.left -= amount_nano
            counter.held += amount_nano
        return True

    def short(self, tokens: int, now_s: float) -> list[Shortage]:
        """Return the counters because of which `take` refuses."""
        return shortages(self.counted, 1, now_s) + shortages(self.tokens, tokens, now_s)

    def headers(self, now_s: float) -> Headers:
        """Return headers, in OpenAI's names, for the request and token limits closest to being reached."""
        headers: Headers = []
        for shown in self._shown:
            nearest = shown[0] if len(shown) == 1 else min(shown, key=_left)
            headers += nearest.headers(now_s)
        return headers


def _lacks(counters: tuple[Counter, ...], amount: int, now_s: float) -> bool:
    """Whether one of the counters has less than the amount."""
    for counter in counters:
        if now_s >= counter.ends_s:
            counter.roll(now_s)
        if counter.left < amount:
            return True
    return False


def shortages(counters: tuple[Counter, ...], amount: int, now_s: float) -> list[Shortage]:
    """Return the counters with less than `amount` left, each with `amount` in its own unit."""
    short: list[Shortage] = []
    for counter in counters:
        if now_s >= counter.ends_s:
            counter.roll(now_s)
        if counter.left < amount:
            short.append((counter, amount))
    return short


def _left(shown: Shown) -> int:
    return shown.counter.visible


NO_PLAN = Plan(())


class _KeyPlans:
    """One key's plans: one for each model that a limit names, and one for all others.

    `of_models` has the limits that name some models alone, without those on all.
    """

    __slots__ = ("_counters", "by_model", "general", "of_models", "quotas")

    def __init__(self, quotas: tuple[Quota, ...], counter: Callable[[Quota], Counter]) -> None:
        self.quotas = quotas
        counters = [(quota.model, counter(quota)) for quota in _least(quotas)]
        self.general = Plan(have for model, have in counters if model is None)
        names = {model for model, _ in counters if model is not None}
        self.by_model = {name: Plan(have for model, have in counters if model in (None, name)) for name in names}
        self._counters = counters
        self.of_models: dict[tuple[str, ...], Plan] = {(): NO_PLAN}

    def naming(self, models: Iterable[str]) -> Plan:
        """Return the plan, made at its first request. There is at most one for each set of models in limits."""
        named = tuple(sorted({name for name in models if name in self.by_model}))
        plan = self.of_models.get(named)
        if plan is None:
            plan = self.of_models[named] = Plan(have for model, have in self._counters if model in named)
        return plan


class Plans:
    """The plans of each key, made when it is first seen and whenever its limits change."""

    def __init__(self, counter: Callable[[Quota], Counter]) -> None:
        self._counter = counter
        self._by_key: dict[str, _KeyPlans] = {}

    def of(self, caller: Caller, model: str) -> Plan:
        plans = self._by_key.get(caller.key_id)
        if plans is None or plans.quotas is not caller.quotas:
            plans = self._look_again(caller, plans)
        return plans.by_model.get(model, plans.general) if plans.by_model else plans.general

    def beside(self, caller: Caller, *models: str) -> Plan:
        """Return the plan that applies in addition to a request's own if the answering model has these names."""
        plans = self._by_key.get(caller.key_id)
        if plans is None or plans.quotas is not caller.quotas:
            plans = self._look_again(caller, plans)
        return plans.naming(models)

    def _look_again(self, caller: Caller, known: _KeyPlans | None) -> _KeyPlans:
        if known is not None and known.quotas == caller.quotas:
            known.quotas = caller.quotas
            return known
        if len(self._by_key) >= PLANS_MAX:
            self._by_key.clear()
        plans = self._by_key[caller.key_id] = _KeyPlans(caller.quotas, self._counter)
        return plans

    def forget(self) -> None:
        """Drop all plans after counters were dropped, so that later requests get the current counters."""
        self._by_key.clear()


def _least(quotas: tuple[Quota, ...]) -> list[Quota]:
    """Return the lowest of several limits on the same counter."""
    least: dict[tuple[str, str, str | None, str | None], Quota] = {}
    for quota in quotas:
        name = (quota.scope, quota.measure, quota.span, quota.model)
        if name not in least or quota.amount < least[name].amount:
            least[name] = quota
    return list(least.values())
