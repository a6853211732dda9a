"""What is told to the caller alone, since a backend's own words may repeat the prompt."""

import json

import pytest

from gateway.errors import GatewayError, to_api_error
from gateway.journey.settlement import refusal
from gateway.lanes.refusals import failure_of, raise_error

WORDS = "content policy: 'my secret plan'"


def broken_off() -> GatewayError:
    return failure_of("desk", 500, json.dumps({"error": {"message": WORDS, "code": "policy"}}).encode(), None)


def in_place_of_an_answer(kind: str) -> GatewayError:
    with pytest.raises(GatewayError) as raised:
        raise_error("desk", {"message": WORDS, "code": "policy", "type": kind})
    return raised.value


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (broken_off(), "desk answered 500 (policy)"),
        (
            failure_of("desk", 503, b'{"error": {"message": "secret", "code": "my secret"}}', b"5"),
            "desk answered 503",
        ),
        (in_place_of_an_answer("invalid_request_error"), "desk refused the request (policy)"),
        (in_place_of_an_answer("server_error"), "desk answered with an error (policy)"),
    ],
    ids=["status", "busy", "refusal", "error"],
)
def test_only_the_caller_sees_a_backends_words(error: GatewayError, logged: str) -> None:
    assert refusal(error).problem == str(error) == logged
    assert "secret" in to_api_error(error).message
