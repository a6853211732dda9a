"""Which listings are shown if there are too many: a flood of new identities gets only a limited share."""

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterable

from gateway.buying.ware import Ware

OFFERS_MAX = 512
MODEL_MAX = 64
"""Listings of one model, not counting friends."""
NEWCOMERS_MAX = 128


class Display:
    """Choose at random, with the same result for the life of the process, so that the list does not flicker."""

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(16)

    def of(self, wares: Iterable[Ware], is_friend: Callable[[str], bool]) -> list[Ware]:
        """Return friends first, then known sellers, then new sellers with one listing per model each."""
        shown: list[Ware] = []
        of_model: Counter[str] = Counter()
        seen: set[tuple[str, str, str]] = set()
        newcomers = 0
        for ware in sorted(wares, key=lambda each: self._place(each, is_friend)):
            kind = "" if ware.is_probation else ware.listing.quantization
            thing = ware.seller, ware.listing.id, kind
            if not is_friend(ware.seller) and (thing in seen or of_model[ware.listing.id] >= MODEL_MAX):
                continue
            if ware.is_probation and newcomers >= NEWCOMERS_MAX:
                continue
            seen.add(thing)
            of_model[ware.listing.id] += 1
            newcomers += ware.is_probation
            shown.append(ware)
        return shown[:OFFERS_MAX]

    def _place(self, ware: Ware, is_friend: Callable[[str], bool]) -> tuple[bool, bool, bytes]:
        lot = hashlib.blake2b(f"{ware.seller}/{ware.name}".encode(), key=self._salt, digest_size=8).digest()
        return not is_friend(ware.seller), ware.is_probation, lot
