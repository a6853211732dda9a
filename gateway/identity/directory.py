"""Everything about who may come in, in one place: keys, people, limits, sessions, the audit log."""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from gateway.identity.audit import AuditLog
from gateway.identity.gate import Gate, WrongKeys
from gateway.identity.keys import Keys
from gateway.identity.oidc import Provider
from gateway.identity.people import People
from gateway.identity.quotas import Quotas
from gateway.identity.sessions import Sessions
from gateway.settings.base import LaneName
from gateway.settings.identity import IdentitySettings

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Directory:
    """`provider` is None where only keys sign in; `read` and `write` open sessions of the database."""

    settings: IdentitySettings
    keys: Keys
    gate: Gate
    people: People
    quotas: Quotas
    sessions: Sessions
    audit: AuditLog
    provider: Provider | None
    read: Callable[[], Session]
    write: Callable[[], Session]

    @classmethod
    def of(
        cls,
        keys: Keys,
        settings: IdentitySettings,
        lanes: tuple[LaneName, ...],
        read: Callable[[], Session],
        write: Callable[[], Session],
    ) -> "Directory":
        """`lanes` is what people may use who sign in without a key."""
        return cls(
            settings,
            keys,
            Gate(keys, WrongKeys(settings.wrong_keys_per_minute)),
            People(read, write),
            Quotas(read, write),
            Sessions(keys, lanes, read, write, settings.session_hours * _HOUR_S),
            AuditLog(read, write),
            Provider(settings) if settings.oidc_issuer else None,
            read,
            write,
        )
