"""Messages for joining, on the controller's port, before the new machine has a certificate."""

from msgspec import Struct


class AskAuthority(Struct, frozen=True, tag=True):
    """The question which certificate authority signs here. The asker checks it against the token's fingerprint."""


class Authority(Struct, frozen=True, tag=True):
    """The answer to AskAuthority."""

    certificate_pem: str


class Enrol(Struct, frozen=True, tag=True):
    """A machine's request to join, with its token and a certificate signing request."""

    token: str
    signing_request_pem: str


class Enrolled(Struct, frozen=True, tag=True):
    """The answer to Enrol: the new machine's certificate."""

    certificate_pem: str


class Refused(Struct, frozen=True, tag=True):
    """The reason why the connection ends; always the last message on it.

    `removed` says that only a new token helps.
    """

    reason: str
    removed: bool = False
