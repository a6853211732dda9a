"""The secret that keys and sessions are hashed with; gateways that share a database need the same one."""

import hmac
import os
import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from sqlalchemy import delete, exists, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from gateway.identity.tables import api_key_table, key_secret_table
from gateway.settings.identity import HOW_TO_MAKE_ONE, SECRET_BYTES_MIN, IdentitySettings
from runtime.settings import SettingsInvalid

_OTHERS = 0o077
_ROW = 1


def load_secret(settings: IdentitySettings, folder: Path) -> bytes:
    """Return the secret of the settings, else the data directory's own, which is made on first use.

    Raises:
        SettingsInvalid: the file cannot be used.
    """
    if settings.secret is not None:
        return settings.secret.get_secret_value().encode()
    if settings.secret_file is not None:
        return _shared(settings.secret_file)
    return _own(folder / "secret")


def open_secret(settings: IdentitySettings, folder: Path, write: Callable[[], Session]) -> bytes:
    """Return the secret after checking that the database's keys use it. Raises SettingsInvalid."""
    secret = load_secret(settings, folder)
    check_secret(secret, write)
    return secret


def has_secret(settings: IdentitySettings, folder: Path) -> bool:
    """Return whether `load_secret` would find an existing secret."""
    return bool(settings.secret or settings.secret_file) or (folder / "secret").exists()


def check_secret(secret: bytes, write: Callable[[], Session]) -> None:
    """Check that the keys in the database, if any, are hashed with this secret.

    Raises:
        SettingsInvalid: the secrets differ, so neither gateway would accept keys that the other one made.
    """
    fingerprint = hmac.new(secret, b"which secret this is", sha256).hexdigest()
    try:
        known = _claim(fingerprint, write)
    except IntegrityError:
        # Another gateway made its first start at the same moment and was faster.
        known = _claim(fingerprint, write)
    if known != fingerprint:
        raise SettingsInvalid(
            "identity.secret: the keys in this database are hashed with another secret. Set identity.secret or "
            "identity.secret_file to it; the gateway that made them may have it in the file `secret` of its data "
            "folder. If the secret is lost, revoke the keys"
        )


def _claim(fingerprint: str, write: Callable[[], Session]) -> str:
    """Return the stored fingerprint of the keys' secret; store this one instead if there are no valid keys."""
    with write() as session, session.begin():
        known: str | None = session.scalar(select(key_secret_table.c.fingerprint))
        if known == fingerprint or (known is not None and _has_keys(session)):
            return known
        session.execute(delete(key_secret_table))
        session.execute(key_secret_table.insert().values(id=_ROW, fingerprint=fingerprint))
    return fingerprint


def _has_keys(session: Session) -> bool:
    column = api_key_table.c
    lasts = or_(column.expires_ns.is_(None), column.expires_ns > time.time_ns())
    return bool(session.scalar(select(exists().where(column.revoked_ns.is_(None), lasts))))


def _shared(path: Path) -> bytes:
    """Read the file byte for byte, so that one gateway's file can be used by all."""
    try:
        if path.stat().st_mode & _OTHERS:
            raise SettingsInvalid(f"identity.secret_file: {path} is open to other users: chmod 600 {path}")
        secret = path.read_bytes()
    except OSError as error:
        raise SettingsInvalid(f"identity.secret_file: {path} cannot be read: {error.strerror}") from None
    if len(secret) < SECRET_BYTES_MIN:
        raise SettingsInvalid(f"identity.secret_file: {path} has {len(secret)} bytes, too few: {HOW_TO_MAKE_ONE}")
    return secret


def _own(path: Path) -> bytes:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES_MIN))
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        pass
    return path.read_bytes()
