"""Stripe's idempotency: the first answer of a key is its answer for ever, a stored 500 included.

The same key with another path or other parameters is a 400 `idempotency_error`; while its first request still
runs, a 409. What fails before it begins (parameters that cannot be read, a rate limit) leaves the key free.
"""

import hashlib
from dataclasses import dataclass

from tests.fakes.stripe.errors import Refused
from tests.fakes.stripe.state import Object


@dataclass
class Answer:
    status: int
    body: Object


class Keys:
    def __init__(self) -> None:
        self._requests: dict[tuple[str, str], bytes] = {}
        self._answers: dict[tuple[str, str], Answer] = {}

    def begin(self, scope: str, key: str, path: str, body: bytes) -> Answer | None:
        """Return what the key was answered before, or note that its first request begins."""
        request = hashlib.sha256(path.encode() + b"\0" + body).digest()
        before = self._requests.setdefault((scope, key), request)
        if before != request:
            message = f"Key '{key}' was first used with other parameters."
            raise Refused(400, "idempotency_error", message)
        if (scope, key) in self._answers:
            return self._answers[scope, key]
        if before is not request:
            message = "There is currently another in-progress request using this Idempotent Key."
            raise Refused(409, "idempotency_error", message, "idempotency_key_in_use")
        return None

    def end(self, scope: str, key: str, answer: Answer | None) -> None:
        """Keep the answer, or forget the key where there is none to keep."""
        if answer is None:
            del self._requests[scope, key]
        else:
            self._answers[scope, key] = answer
