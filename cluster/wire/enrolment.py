"""Joining: on the controller's port, before the new machine has a certificate."""

from msgspec import Struct


class AskAuthority(Struct, frozen=True, tag=True):
    """Which certificate authority signs here? The asker checks it against the join token's fingerprint."""


class Authority(Struct, frozen=True, tag=True):
    certificate_pem: str


class Enrol(Struct, frozen=True, tag=True):
    token: str
    signing_request_pem: str


class Enrolled(Struct, frozen=True, tag=True):
    certificate_pem: str


class Refused(Struct, frozen=True, tag=True):
    """Why the connection ends; always the last message on it. `removed` says that only a new token helps."""

    reason: str
    removed: bool = False
