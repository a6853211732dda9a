"""Callers for tests of limits."""

from gateway.identity.caller import Caller
from gateway.quota import Measure, Quota, Span


def caller(*quotas: Quota, key_id: str = "a") -> Caller:
    return Caller(key_id, "mr-a", "ann", "lab", frozenset({"cluster"}), quotas=quotas)


def quota(
    measure: Measure, amount: int, span: Span | None = None, *, scope: str = "key:a", model: str | None = None
) -> Quota:
    return Quota(scope, measure, amount, None if measure == "concurrency" else span or "minute", model)
