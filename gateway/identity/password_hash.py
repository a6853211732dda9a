"""Password hashes: Argon2id with a salt and parameters for each. Pure other than for the random salt."""

import secrets
import unicodedata

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from runtime.errors import RequestInvalid

LENGTH_MIN = 10
LENGTH_MAX = 128

_SALT_BYTES, _DIGEST_BYTES = 16, 32
# 32 MiB and a quarter of a second on one core: the cost of each guess for an attacker with the database.
_MEMORY_KIB, _PASSES = 32 * 2**10, 6


def checked_password(text: str, field: str = "password") -> str:
    """Raises RequestInvalid for one that is too short or too long."""
    length = len(_normal(text))
    if length < LENGTH_MIN:
        raise RequestInvalid(
            f"{field}: must have at least {LENGTH_MIN} characters; use a passphrase of several words", param=field
        )
    if length > LENGTH_MAX:
        raise RequestInvalid(f"{field}: must have at most {LENGTH_MAX} characters", param=field)
    return text


def hashed(password: str) -> str:
    """Return the stored form: a PHC string of algorithm, parameters, salt and digest."""
    salt, length = secrets.token_bytes(_SALT_BYTES), _DIGEST_BYTES
    argon2 = Argon2id(salt=salt, length=length, lanes=1, iterations=_PASSES, memory_cost=_MEMORY_KIB)
    return argon2.derive_phc_encoded(_normal(password).encode("utf-8", "replace"))


def matches(password: str, stored: str) -> bool:
    """Whether this is the password; takes as long for a wrong one. False for an unreadable hash."""
    if len(password) > LENGTH_MAX:
        password = ""  # No password is this long; hash anyway, so that the time is the same.
    try:
        Argon2id.verify_phc_encoded(_normal(password).encode("utf-8", "replace"), stored)
    except InvalidKey:
        return False
    return True


def is_outdated(stored: str) -> bool:
    """Whether a password that was just entered should be hashed again, with the current parameters."""
    return not stored.startswith(_prefix())


def _prefix() -> str:
    return f"$argon2id$v=19$m={_MEMORY_KIB},t={_PASSES},p=1$"


PLACEHOLDER_HASH = f"{_prefix()}{'A' * 22}${'A' * 43}"
"""A hash that no password matches, for unknown user names: refusing them takes as long as any other."""


def _normal(text: str) -> str:
    """Return the password in one Unicode form, whichever way a keyboard composes letters."""
    return unicodedata.normalize("NFKC", text)
