"""Where chance comes from: one seed a request, one derived from it for each choice."""

import hashlib
import secrets


def fresh_seed() -> int:
    return secrets.randbits(62)


def choice_seed(seed: int, choice: int) -> int:
    """The seed of one of a request's choices; neighbouring seeds share no choice."""
    if not choice:
        return seed
    digest = hashlib.blake2b(f"{seed}/{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2
