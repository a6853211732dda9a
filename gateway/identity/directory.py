"""Access control in one place: keys, passwords, users, limits, sessions, the audit log."""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from gateway.identity.audit import AuditLog
from gateway.identity.gate import Gate, WrongKeys
from gateway.identity.keys import Keys
from gateway.identity.oidc import Provider
from gateway.identity.password_gate import PasswordGate
from gateway.identity.passwords import Passwords
from gateway.identity.quotas import Quotas
from gateway.identity.sessions import Sessions
from gateway.identity.users import Users
from gateway.settings.base import LaneName
from gateway.settings.identity import IdentitySettings

_HOUR_S = 3600.0
_TOO_MANY_FOR_NAME = "More than {} wrong passwords a minute were tried for {}. Wait, or sign in with a key."


@dataclass(frozen=True, slots=True)
class Directory:
    """`lanes` are those of a new key, and of users who sign in without a key.

    `provider` is None if no identity provider is configured; `read` and `write` open database sessions.
    """

    settings: IdentitySettings
    lanes: tuple[LaneName, ...]
    keys: Keys
    gate: Gate
    users: Users
    quotas: Quotas
    sessions: Sessions
    passwords: Passwords
    password_gate: PasswordGate
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
        """Build the directory over the keys and one database."""
        gate, passwords = Gate(keys, WrongKeys(settings.wrong_keys_per_minute)), Passwords(read, write)
        of_name = WrongKeys(settings.wrong_passwords_per_minute, sentence=_TOO_MANY_FOR_NAME)
        return cls(
            settings,
            lanes,
            keys,
            gate,
            Users(read, write),
            Quotas(read, write),
            Sessions(keys, lanes, read, write, settings.session_hours * _HOUR_S),
            passwords,
            PasswordGate(passwords, gate.wrong, of_name),
            AuditLog(read, write),
            Provider(settings) if settings.oidc_issuer else None,
            read,
            write,
        )
