"""Seal a sequence of pieces: none can be changed, omitted, duplicated, moved or added, and the end is certain.

Every piece uses the next nonce, and its authenticated part says whether it is the last. Before sealing, a piece is
padded to a multiple of 64 bytes, because the lengths of single words would tell an eavesdropper much about them.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from market.errors import SealBroken
from market.protocol.sealing.agreement import NONCE_BYTES, Keys

PIECE_BYTES_MAX = 2**16
PIECES_MAX = 2**32
_FILL_BYTES = 64
_LENGTH_BYTES = 3
_TAG_BYTES = 16
_MORE, _LAST = b"\x00", b"\x01"


class Sealer:
    """Seal one direction's pieces in their order. Use a pair of keys with one sealer only."""

    def __init__(self, keys: Keys) -> None:
        self._cipher = ChaCha20Poly1305(keys.key)
        self._counter = _Counter(keys.nonce)
        self._has_ended = False

    def seal(self, piece: bytes, *, is_last: bool = False) -> bytes:
        """Return the sealed piece. No piece can follow the last one."""
        assert not self._has_ended, "the last piece was sealed before"
        assert len(piece) <= PIECE_BYTES_MAX, "a piece has a limit"
        self._has_ended = is_last
        flag = _LAST if is_last else _MORE
        return flag + self._cipher.encrypt(self._counter.next(), _filled(piece), flag)


class Opener:
    """Open what a sealer sealed, in the same order. After a failure nothing more can be opened."""

    def __init__(self, keys: Keys) -> None:
        self._cipher = ChaCha20Poly1305(keys.key)
        self._counter = _Counter(keys.nonce)
        self._has_failed = False
        self.has_ended = False

    def open(self, sealed: bytes) -> bytes:
        """Return the piece.

        Raises:
            SealBroken: it is not the next piece, was changed, or comes after the last one.
        """
        if self.has_ended or self._has_failed:
            raise SealBroken("a piece came after the end")
        flag = sealed[:1]
        try:
            if flag not in (_MORE, _LAST) or len(sealed) > _sealed_bytes_max():
                raise InvalidTag
            filled = self._cipher.decrypt(self._counter.next(), sealed[1:], flag)
        except InvalidTag:
            self._has_failed = True
            raise SealBroken("a piece was changed, left out, or is out of order") from None
        self.has_ended = flag == _LAST
        return _unfilled(filled)

    def finish(self) -> None:
        """Check that nothing was cut off.

        Raises:
            SealBroken: the last piece has not come.
        """
        if not self.has_ended:
            raise SealBroken("the last piece has not come")


class _Counter:
    """Nonces: the first one, with the piece's number XORed into its end."""

    def __init__(self, first: bytes) -> None:
        self._first = int.from_bytes(first)
        self._used = 0

    def next(self) -> bytes:
        if self._used >= PIECES_MAX:
            raise SealBroken("too many pieces were sealed with one key")
        nonce = (self._first ^ self._used).to_bytes(NONCE_BYTES)
        self._used += 1
        return nonce


def _filled(piece: bytes) -> bytes:
    size_bytes = _LENGTH_BYTES + len(piece)
    return len(piece).to_bytes(_LENGTH_BYTES) + piece + bytes(-size_bytes % _FILL_BYTES)


def _unfilled(filled: bytes) -> bytes:
    end = _LENGTH_BYTES + int.from_bytes(filled[:_LENGTH_BYTES])
    if end > len(filled):
        raise SealBroken("a piece is shorter than it says")
    return filled[_LENGTH_BYTES:end]


def _sealed_bytes_max() -> int:
    return 1 + _LENGTH_BYTES + PIECE_BYTES_MAX + _FILL_BYTES + _TAG_BYTES
