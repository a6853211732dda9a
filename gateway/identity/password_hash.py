"""Password hashes: scrypt with a salt and parameters for each. Pure other than for the random salt."""

import base64
import hashlib
import hmac
import secrets
import unicodedata

from runtime.errors import RequestInvalid

LENGTH_MIN = 10
LENGTH_MAX = 128

_SALT_BYTES = 16
_DIGEST_BYTES = 32
# 32 MiB and a quarter of a second on one core: the cost of each guess for an attacker with the database.
_LOG2_N, _R, _P = 15, 8, 3
_MEMORY_BYTES_MAX = 128 * 2**20
_LOG2_N_MAX = 16


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
    """Return the stored form: scheme, parameters, salt and digest, separated by dollar signs."""
    salt = secrets.token_bytes(_SALT_BYTES)
    digest = _digest(password, salt, _LOG2_N, _R, _P)
    return "$".join(("scrypt", f"{_LOG2_N},{_R},{_P}", _text(salt), _text(digest)))


def matches(password: str, stored: str) -> bool:
    """Whether this is the password; takes as long for a wrong one. Raises ValueError for an unknown hash."""
    _, parameters, salt, digest = stored.split("$")
    log2_n, r, p = (int(number) for number in parameters.split(","))
    if log2_n > _LOG2_N_MAX:
        raise ValueError("a password's hash has parameters that no Millrace has used")
    if len(password) > LENGTH_MAX:
        password = ""  # No password is this long; hash anyway, so that the time is the same.
    found = _digest(password, base64.b64decode(salt), log2_n, r, p)
    return hmac.compare_digest(found, base64.b64decode(digest))


def is_outdated(stored: str) -> bool:
    """Whether a password that was just entered should be hashed again, with the current parameters."""
    return stored.split("$")[1] != f"{_LOG2_N},{_R},{_P}"


PLACEHOLDER_HASH = f"scrypt${_LOG2_N},{_R},{_P}${'A' * 22}==${'A' * 43}="
"""A hash that no password matches, for unknown user names: refusing them takes as long as any other."""


def _digest(password: str, salt: bytes, log2_n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(
        _normal(password).encode("utf-8", "replace"),
        salt=salt,
        n=2**log2_n,
        r=r,
        p=p,
        maxmem=_MEMORY_BYTES_MAX,
        dklen=_DIGEST_BYTES,
    )


def _normal(text: str) -> str:
    """Return the password in one Unicode form, whichever way a keyboard composes letters."""
    return unicodedata.normalize("NFKC", text)


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
