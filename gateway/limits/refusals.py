"""Error texts for limits that are reached."""

import math
from typing import NamedTuple

from gateway.errors import BudgetUnavailable
from gateway.limits.counters import Counter, CounterKey
from gateway.limits.headers import headers_of
from runtime.errors import BudgetExceeded, RateLimited

_NANO_PER_USD = 10**9
_UNKNOWN_S = 5


class Refused(NamedTuple):
    """The limit that a request reached, and the error for its caller."""

    counter: Counter
    error: RateLimited


def refusal(counter: Counter, amount: int, room_s: float) -> Refused:
    """Return the refusal of a request that needs `amount`, in the measure's unit.

    There may be room again after `room_s` seconds.
    """
    limit, whose = in_words(counter.key, counter.amount), _whose(counter.key)
    if amount > counter.amount:
        requested = _quantity(counter.key, amount)
        message = f"The request may take {requested}, more than the whole limit of {limit} for {whose}."
        if counter.key.measure in ("tokens", "spend"):
            message += " Ask for less: a shorter prompt, or a lower max_tokens."
        return Refused(counter, _kind(counter.key)(message, None))
    retry_after_s = max(1, math.ceil(room_s))
    message = f"The limit of {limit} for {whose} is reached. Try again in {retry_after_s} s."
    error = _kind(counter.key)(message, retry_after_s)
    error.headers = tuple(headers_of(counter, retry_after_s))
    return Refused(counter, error)


def unknown_budget(counter: Counter) -> Refused:
    limit, whose = in_words(counter.key, counter.amount), _whose(counter.key)
    message = f"What is left of the limit of {limit} for {whose} is unknown now, so nothing is spent."
    message += f" Local machines still answer. Try again in {_UNKNOWN_S} s."
    return Refused(counter, BudgetUnavailable(message, _UNKNOWN_S))


def in_words(key: CounterKey, amount: int) -> str:
    """Return a limit as text, such as `60 requests a minute`; `amount` is in the measure's unit."""
    if key.measure == "concurrency":
        return f"{amount} requests at a time"
    return f"{_quantity(key, amount)} a {key.span}"


def _quantity(key: CounterKey, amount: int) -> str:
    if key.measure == "spend":
        return f"{amount // _NANO_PER_USD}.{amount % _NANO_PER_USD:09d}".rstrip("0").rstrip(".") + " USD"
    return f"{amount} {key.measure}"


def _whose(key: CounterKey) -> str:
    kind, _, name = key.scope.partition(":")
    owner = "this key" if kind == "key" else f"the {kind} '{name}'"
    return f"{owner} and the model '{key.model}'" if key.model else owner


def _kind(key: CounterKey) -> type[RateLimited]:
    return BudgetExceeded if key.measure == "spend" else RateLimited
