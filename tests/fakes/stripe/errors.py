"""What Stripe refuses, with the status, type and code that it answers."""

from typing import Any


class Refused(Exception):
    def __init__(self, status: int, kind: str, message: str, code: str | None = None, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"type": kind, "message": message, **({"code": code} if code else {}), **more}}


def missing(kind: str, object_id: str) -> Refused:
    return Refused(404, "invalid_request_error", f"No such {kind}: '{object_id}'", "resource_missing")


def invalid(message: str, code: str | None = None, param: str | None = None) -> Refused:
    return Refused(400, "invalid_request_error", message, code, **({"param": param} if param else {}))
