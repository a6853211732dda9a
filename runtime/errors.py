"""Errors of a server that refuses a request, one class per meaning. None of them knows HTTP."""

from typing import Self

from runtime.redaction import without_internals


class ServiceError(Exception):
    """Root of what a server itself refuses; `param` names the request's field when one is to blame."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    def quoting(self, message: str) -> Self:
        """With a message for the caller alone, since it has a backend's own words: they may repeat the prompt.

        Logs write `str(error)`, which stays as it was. Paths and names of an operator's machine are removed.
        """
        self.message = without_internals(message)
        return self


class RequestInvalid(ServiceError):
    """The body is not what the API asks for."""


class BodyTooLarge(ServiceError):
    @classmethod
    def of_request(cls, bytes_max: int) -> "BodyTooLarge":
        return cls(f"The body is larger than {bytes_max} bytes, this gateway's limit. Send less text.")


class HeadersTooLarge(ServiceError):
    pass


class KeyInvalid(ServiceError):
    pass


class NotFound(ServiceError):
    pass


class MethodNotAllowed(ServiceError):
    pass


class HostUnknown(ServiceError):
    """The request was meant for another host, by a name that is none of this gateway's."""


class Conflict(ServiceError):
    """The request conflicts with existing data, or with data that must stay."""


class RateLimited(ServiceError):
    """A limit is reached; `retry_after_s` is None where no wait would help. `headers` say how far it goes."""

    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __init__(self, message: str, retry_after_s: int | None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BudgetExceeded(RateLimited):
    """A limit on money is reached."""


class Overloaded(ServiceError):
    """Too much is running; worth trying again after `retry_after_s`."""

    retry_after_s = 1


class QueueFull(ServiceError):
    """No more may wait for a backend, or no slot came free in time; worth trying again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class LaneFailed(ServiceError):
    """A backend did not answer, or answered nonsense, before its first byte. `kind` is what metrics call it."""

    kind = "failed"


class LaneBrokeOff(LaneFailed):
    """The request was sent and no answer came: the backend may have worked on it, and its owner may charge."""

    kind = "broke_off"


class LaneTimeout(LaneBrokeOff):
    kind = "timeout"
