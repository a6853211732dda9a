"""Who takes part in the tests of the market: keys from names, and what they sign."""

import functools
import hashlib

from msgspec import Struct

from accounting.proofs.signing_key import Signer
from market.protocol.identity.keys import identity_of, signer_of
from market.protocol.identity.lineage import Identities
from market.protocol.records.envelope import Kind, Record, Saying, sign

NOW_MS = 1_790_000_000_000
STANDING = Identities().standing


@functools.cache
def key_of(name: str) -> Signer:
    return signer_of(hashlib.sha256(name.encode()).digest())


def id_of(name: str) -> str:
    """The identity that begins with this name's key, and has no recovery key."""
    return identity_of(key_of(name).public_key)


def signed_record(
    by: str,
    kind: Kind,
    body: Struct,
    name: str = "it",
    revision: int = 0,
    made_ms: int = NOW_MS,
    lasts_ms: int | None = None,
    issuer: str = "",
) -> Record:
    expires_ms = None if lasts_ms is None else made_ms + lasts_ms
    saying = Saying(kind, issuer or id_of(by), name, revision, made_ms, body, expires_ms)
    return sign(saying, key_of(by))
