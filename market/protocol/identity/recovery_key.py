"""Write and read the recovery key as text for paper or a USB stick, with a checksum against copying errors."""

import base64
import hashlib
import secrets

from accounting.proofs.signing_key import Signer
from market.errors import IdentityInvalid
from market.protocol.identity.keys import signer_of

_SEED_BYTES = 32
_CHECK_BYTES = 3
_GROUP = 4


def new_recovery_key() -> str:
    """Return a new key, as 14 groups of four letters and digits. It is not stored anywhere."""
    seed = secrets.token_bytes(_SEED_BYTES)
    letters = base64.b32encode(seed + _check(seed)).decode()
    return "-".join(letters[at : at + _GROUP] for at in range(0, len(letters), _GROUP))


def read_recovery_key(text: str) -> Signer:
    """Read a written key. Spaces, dashes and lower case do not matter.

    Raises:
        IdentityInvalid: it is not a recovery key, or was copied wrong. The message does not repeat it.
    """
    letters = "".join(character for character in text.upper() if character not in "- \t\r\n")
    try:
        content = base64.b32decode(letters)
    except ValueError:
        content = b""
    seed, check = content[:_SEED_BYTES], content[_SEED_BYTES:]
    if len(seed) != _SEED_BYTES or check != _check(seed):
        raise IdentityInvalid("this is not a valid recovery key; check every letter")
    return signer_of(seed)


def _check(seed: bytes) -> bytes:
    return hashlib.sha256(b"millrace recovery key\n" + seed).digest()[:_CHECK_BYTES]
