"""Manage the key that signs blocks: a file of one gateway, made on first use and replaceable at any time.

`cryptography` is imported when a key is first needed, because commands that only read the ledger do without it.
"""

import hashlib
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runtime.files import replace_file

_OTHERS = 0o077

_FIELD = 2**255 - 19
_ORDER_8_Y = int.from_bytes(
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"
)
# The y of all eight points of small order: under such a key anyone can sign anything.
_SMALL_ORDER_YS = frozenset({0, 1, _FIELD - 1, _ORDER_8_Y, _FIELD - _ORDER_8_Y})


class SigningKeyUnusable(RuntimeError):
    """Raised when the file of the signing key cannot be read, written or understood."""


@dataclass(frozen=True, slots=True)
class Signer:
    """A loaded private key. `sign` returns 64 bytes. `fingerprint` is the SHA-256 of `public_key` in hex."""

    fingerprint: str
    public_key: bytes
    sign: Callable[[bytes], bytes]


class KeyFile:
    """An Ed25519 key in PEM (PKCS 8, not encrypted), readable only by its owner."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] | None = None
        self._signer: Signer | None = None

    def signer(self) -> Signer:
        """Return the file's key. Create it if it is missing; read it again after the file was replaced.

        Raises:
            SigningKeyUnusable: the file cannot be used.
        """
        try:
            stamp = self._stamp_now()
            if stamp is None:
                make_key(self.path)
                stamp = self._stamp_now()
            if self._signer is None or stamp != self._stamp:
                self._signer, self._stamp = _load(self.path), stamp
        except OSError as error:
            raise SigningKeyUnusable(f"{self.path} cannot be used: {error.strerror}") from error
        return self._signer

    def _stamp_now(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        if stat.S_IMODE(found.st_mode) & _OTHERS:
            raise SigningKeyUnusable(f"{self.path} is open to other users: chmod 600 {self.path}")
        return found.st_mtime_ns, found.st_ino


def make_key(path: Path) -> None:
    """Write a new key. It replaces the old one, if any, and takes over its owner and mode.

    Raises OSError, also if the file cannot be given to that owner: the gateway could not read it.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    replace_file(path, pem)


def _load(path: Path) -> Signer:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError):
        raise SigningKeyUnusable(f"{path} is not a private key in PEM") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SigningKeyUnusable(f"{path} is not an Ed25519 key")
    public = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return Signer(fingerprint_of(public), public, key.sign)


def fingerprint_of(public_key: bytes) -> str:
    return hashlib.sha256(public_key).hexdigest()


def is_key(public_key: bytes) -> bool:
    """Return whether these 32 bytes can be a public key: the only encoding of a point that is not of small order.

    A point whose x is 0 has a second encoding, and is of small order as well.
    """
    y = int.from_bytes(public_key, "little") & (2**255 - 1)
    return len(public_key) == 32 and y < _FIELD and y not in _SMALL_ORDER_YS


def is_signed(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether the holder of a key signed this message. It never accepts a key that `is_key` rejects.

    The library refuses a signature whose second half is not below the group's order, so no one can derive a second
    signature from one.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if not is_key(public_key):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
