"""Sellers that come to ask for work: who they are is proven once with their key, then by a token for an hour."""

import hashlib
import hmac
import secrets
import time

from accounting.proofs.signing_key import is_signed
from gateway.errors import KeyInvalid, QueueFull
from gateway.market.errand import DOMAIN

NONCE_S = 60
SESSION_S = 3600
SESSIONS_MAX = 4096
SESSIONS_PER_SELLER_MAX = 4


class Sessions:
    """Nonces are remembered only once they were used: strangers may ask for as many as they like."""

    def __init__(self, house: str) -> None:
        self._house = house
        self._secret = secrets.token_bytes(32)
        self._used: dict[str, float] = {}
        self._sessions: dict[str, tuple[str, float]] = {}

    def nonce(self, seller: str) -> str:
        """What this seller is to sign."""
        begun = f"{secrets.token_hex(8)}{int(time.monotonic()):016x}"
        return begun + self._mark(begun, seller)

    def open(self, seller: str, key: str, nonce: str, signature: str) -> str:
        """A token for `SESSION_S`, for whoever holds `key`, which speaks for the seller.

        Raises:
            KeyInvalid: the proof is none, or too old.
            QueueFull: this house relays for as many as it can.
        """
        self._check(nonce, seller)
        said = DOMAIN + bytes.fromhex(self._house) + bytes.fromhex(nonce)
        if not is_signed(bytes.fromhex(key), bytes.fromhex(signature), said):
            raise KeyInvalid("This is not the key's signature over the nonce.")
        # Not before: what strangers make up takes nobody's place among those that are remembered.
        self._use(nonce)
        return self._begin(seller)

    def seller_of(self, token: str) -> str:
        """Whose session it is. Raises KeyInvalid."""
        seller, ends_s = self._sessions.get(_digest(token), ("", 0.0))
        if time.monotonic() >= ends_s:
            raise KeyInvalid("The session has ended; open another one.")
        return seller

    def _check(self, nonce: str, seller: str) -> None:
        begun = nonce[:32]
        if not hmac.compare_digest(nonce[32:], self._mark(begun, seller)):
            raise KeyInvalid("The nonce is none of this house for this identity.")
        if time.monotonic() - int(begun[16:], 16) > NONCE_S or nonce in self._used:
            raise KeyInvalid("The nonce is too old, or was used; ask for another one.")

    def _use(self, nonce: str) -> None:
        now_s = time.monotonic()
        self._used = {old: used_s for old, used_s in self._used.items() if now_s - used_s <= NONCE_S}
        if len(self._used) >= SESSIONS_MAX:
            raise QueueFull("Too many sellers open sessions just now.", NONCE_S)
        self._used[nonce] = now_s

    def _mark(self, begun: str, seller: str) -> str:
        return hmac.new(self._secret, f"{begun}:{seller}".encode(), hashlib.sha256).hexdigest()[:32]

    def _begin(self, seller: str) -> str:
        now_s = time.monotonic()
        open_now = {digest: known for digest, known in self._sessions.items() if known[1] > now_s}
        own = sorted(
            (digest for digest, known in open_now.items() if known[0] == seller), key=open_now.__getitem__
        )
        for digest in own[: max(0, len(own) - SESSIONS_PER_SELLER_MAX + 1)]:
            del open_now[digest]
        if len(open_now) >= SESSIONS_MAX:
            raise QueueFull("As many sellers as this house relays for are here already.", NONCE_S)
        token = secrets.token_urlsafe(32)
        open_now[_digest(token)] = seller, now_s + SESSION_S
        self._sessions = open_now
        return token


def _digest(token: str) -> str:
    """A look-up by the token itself would tell in its time how much of it is right."""
    return hashlib.sha256(token.encode()).hexdigest()
