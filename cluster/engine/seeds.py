"""The seeds of sampling: one for each request, and one derived from it for each choice."""

import hashlib
import secrets


def fresh_seed() -> int:
    """Return a new random seed of 62 bits."""
    return secrets.randbits(62)


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of one of a request's choices. Neighbouring seeds share no choice's seed."""
    if not choice:
        return seed
    digest = hashlib.blake2b(f"{seed}/{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2
