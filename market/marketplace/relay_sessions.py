"""Sessions of sellers that poll for work: their key proves them once, then a token for an hour."""

import hashlib
import hmac
import secrets
import time

from accounting.proofs.signing_key import is_signed
from market.network.relayed_request import DOMAIN
from runtime.errors import KeyInvalid, QueueFull

NONCE_S = 60
SESSION_S = 3600
SESSIONS_MAX = 4096
SESSIONS_PER_SELLER_MAX = 4


class Sessions:
    """Only used nonces are remembered, because anyone may request any number of them."""

    def __init__(self, marketplace: str) -> None:
        self._marketplace = marketplace
        self._secret = secrets.token_bytes(32)
        self._used: dict[str, float] = {}
        self._sessions: dict[str, tuple[str, float]] = {}

    def nonce(self, seller: str) -> str:
        """Return a nonce for this seller to sign."""
        begun = f"{secrets.token_hex(8)}{int(time.monotonic()):016x}"
        return begun + self._mark(begun, seller)

    def open(self, seller: str, key: str, nonce: str, signature: str) -> str:
        """Return a token, valid for `SESSION_S`, to the holder of `key`, which must be the seller's current key.

        Raises:
            KeyInvalid: the proof is invalid or too old.
            QueueFull: this marketplace relays for its maximum number of sellers.
        """
        self._check(nonce, seller)
        signed = DOMAIN + bytes.fromhex(self._marketplace) + bytes.fromhex(nonce)
        if not is_signed(bytes.fromhex(key), bytes.fromhex(signature), signed):
            raise KeyInvalid("This is not the key's signature over the nonce.")
        # Only now: invalid requests must not use up the limited memory for nonces.
        self._use(nonce)
        return self._begin(seller)

    def seller_of(self, token: str) -> str:
        """Return the session's seller. Raises KeyInvalid."""
        seller, ends_s = self._sessions.get(_digest(token), ("", 0.0))
        if time.monotonic() >= ends_s:
            raise KeyInvalid("The session has expired. Open another one.")
        return seller

    def _check(self, nonce: str, seller: str) -> None:
        begun = nonce[:32]
        if not hmac.compare_digest(nonce[32:], self._mark(begun, seller)):
            raise KeyInvalid("The nonce is not from this marketplace for this identity.")
        if time.monotonic() - int(begun[16:], 16) > NONCE_S or nonce in self._used:
            raise KeyInvalid("The nonce has expired or was used. Request another one.")

    def _use(self, nonce: str) -> None:
        now_s = time.monotonic()
        self._used = {old: used_s for old, used_s in self._used.items() if now_s - used_s <= NONCE_S}
        if len(self._used) >= SESSIONS_MAX:
            raise QueueFull("Too many sellers are opening sessions. Try again later.", NONCE_S)
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
            raise QueueFull("This marketplace relays for its maximum number of sellers. Try again later.", NONCE_S)
        token = secrets.token_urlsafe(32)
        open_now[_digest(token)] = seller, now_s + SESSION_S
        self._sessions = open_now
        return token


def _digest(token: str) -> str:
    """Hash the token, since the timing of a lookup by the token itself would reveal how much of it is right."""
    return hashlib.sha256(token.encode()).hexdigest()
