"""Which listings are shown where there are more than fit: a flood of identities gets no more than its part."""

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterable

from gateway.buying.ware import Ware

OFFERS_MAX = 512
MODEL_MAX = 64
"""Of one model, beside those whom we know."""
NEWCOMERS_MAX = 128


class Display:
    """Chooses by chance, which stays the same for as long as we run: what is shown does not flicker."""

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(16)

    def of(self, wares: Iterable[Ware], is_friend: Callable[[str], bool]) -> list[Ware]:
        """Friends first, then those whom we know, then newcomers, of whom one listing for a model."""
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
