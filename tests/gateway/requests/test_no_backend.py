"""The error for a request without candidates names the cause and the remedy."""

import pytest

from gateway.dialects.openai import KINDS
from gateway.errors import to_api_error
from gateway.lanes.base import Offer
from gateway.requests.no_backend import no_backend_error
from gateway.routing.decision import Decision, Rejection
from gateway.routing.policy import Check, Objection
from tests.gateway.routing.offers import call

VALUES: dict[Check, tuple[object, ...]] = {
    "lane": ("cluster",),
    "lanes": ("mr-abc", "pool", "cloud"),
    "privacy": ("private", "public"),
    "spend": ("1", "the budget of key:k", "0.5"),
    "kind": ("does not embed",),
    "context": (4096, 5000, 100),
    "provider": ("only",),
    "price": ("prompt",),
    "down": ("is down",),
    "breaker": ("has a pause",),
}


def offer(check: Check) -> Offer:
    return Offer("pool", "desk", "m", kinds=frozenset(("embedding",)) if check == "kind" else KINDS)


@pytest.mark.parametrize(
    ("checks", "status", "code", "param"),
    [
        ((), 404, "model_not_found", "model"),
        (("context",), 400, "context_length_exceeded", "messages"),
        (("kind", "context"), 400, "context_length_exceeded", "messages"),
        (("provider", "lane"), 400, "no_such_provider", "provider"),
        (("price",), 400, "no_such_provider", "provider"),
        (("lane",), 400, "not_in_lane", "millrace.lane"),
        (("kind",), 400, "unsupported_feature", "model"),
        (("privacy", "down"), 403, "policy_privacy", "model"),
        (("spend",), 403, "policy_spend", "model"),
        (("lanes", "context"), 403, "policy_lanes", "model"),
        # What passes by itself is worth trying again.
        (("context", "down"), 503, "overloaded", None),
        (("breaker",), 503, "overloaded", None),
    ],
)
def test_the_error_fits(checks: tuple[Check, ...], status: int, code: str, param: str | None) -> None:
    rejections = [Rejection(offer(check), Objection(check, VALUES[check])) for check in checks]
    error = to_api_error(no_backend_error(call(), Decision((), tuple(rejections), model="m")))
    assert (error.status, error.code, error.param) == (status, code, param)
    assert ((b"retry-after", b"1") in error.headers) == (status == 503)
    assert ("To fix this:" in error.message) == (400 <= status < 404)


@pytest.mark.parametrize("check", ["lanes", "privacy", "lane"])
def test_what_no_model_can_do_is_not_a_matter_of_keys_or_lanes(check: Check) -> None:
    unable = Rejection(offer("kind"), Objection(check, VALUES[check]))
    error = to_api_error(no_backend_error(call(), Decision((), (unable,), model="m")))
    assert (error.status, error.code, error.param) == (400, "unsupported_feature", "model")
    assert "GET /v1/models" in error.message
    tools = [{"type": "function", "function": {"name": "f"}}]
    plain = Rejection(Offer("pool", "desk", "m", features=frozenset()), Objection(check, VALUES[check]))
    error = to_api_error(no_backend_error(call(tools=tools), Decision((), (unable, plain), model="m")))
    assert (error.status, error.code, error.param) == (400, "unsupported_feature", "tools")
    # One that can, and may not be used, makes it the rule's matter.
    barred = Rejection(offer("lanes"), Objection("lanes", VALUES["lanes"]))
    error = to_api_error(no_backend_error(call(), Decision((), (unable, barred), model="m")))
    assert (error.status, error.code) == (403, "policy_lanes")
