"""What is told to the caller alone, since a backend's own words may repeat the prompt."""

import json

import pytest

from gateway.errors import to_api_error
from gateway.lanes.refusals import failure_of, raise_error
from gateway.requests.settlement import refusal
from runtime.errors import ServiceError

WORDS = "content policy: 'my secret plan'"


def broken_off() -> ServiceError:
    return failure_of("desk", 500, json.dumps({"error": {"message": WORDS, "code": "policy"}}).encode(), None)


def in_place_of_an_answer(kind: str) -> ServiceError:
    with pytest.raises(ServiceError) as raised:
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
def test_only_the_caller_sees_a_backends_words(error: ServiceError, logged: str) -> None:
    assert refusal(error).problem == str(error) == logged
    assert "secret" in to_api_error(error).message
