"""Ed25519 as attackers use it: keys under which anyone can sign, and a second signature over one message."""

import hashlib

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

Point = tuple[int, int]

FIELD = 2**255 - 19
GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, FIELD) % FIELD
_SIGN = 1 << 255


def add(one: Point, other: Point) -> Point:
    (x1, y1), (x2, y2) = one, other
    product = _D * x1 * x2 * y1 * y2 % FIELD
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, FIELD) % FIELD
    return x, (y1 * y2 + x1 * x2) * pow(1 - product, -1, FIELD) % FIELD


def times(number: int, point: Point) -> Point:
    found = (0, 1)
    while number:
        if number & 1:
            found = add(found, point)
        point, number = add(point, point), number >> 1
    return found


def encoded(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) * _SIGN).to_bytes(32, "little")


def _with_y(y: int) -> Point:
    square = (y * y - 1) * pow(_D * y * y + 1, -1, FIELD) % FIELD
    x = pow(square, (FIELD + 3) // 8, FIELD)
    x = x if x * x % FIELD == square else x * pow(2, (FIELD - 1) // 4, FIELD) % FIELD
    return (x if x % 2 == 0 else FIELD - x), y


_BASE = _with_y(4 * pow(5, -1, FIELD) % FIELD)
_SMALL = [times(number * GROUP_ORDER, _with_y(3)) for number in range(8)]
"""All eight points of small order: what is left of a point of every order, without its part in the large group."""
# Of a point with a y below 19 there is a second encoding, of one without an x a second sign.
_SECOND = [(y + more) | sign for y, more in ((0, FIELD), (1, FIELD)) for sign in (0, _SIGN)]
_SECOND += [1 | _SIGN, (FIELD - 1) | _SIGN]
ANYONES_KEYS = [*map(encoded, _SMALL), *(number.to_bytes(32, "little") for number in _SECOND)]


def forged(key: bytes, message: bytes) -> bytes | None:
    """A signature that the library believes, made without a private key; None where this message has none."""
    for point in _SMALL:
        signature = encoded(point) + bytes(32)
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
        except InvalidSignature:
            continue
        return signature
    return None


def signed_again(seed: bytes, message: bytes) -> bytes:
    """A signature by the key of this seed, with another nonce than the one that the library derives."""
    secret = int.from_bytes(hashlib.sha512(seed).digest()[:32], "little") & (2**254 - 8) | 2**254
    nonce = int.from_bytes(hashlib.sha512(b"another" + message).digest(), "little") % GROUP_ORDER
    start, key = encoded(times(nonce, _BASE)), encoded(times(secret, _BASE))
    challenge = int.from_bytes(hashlib.sha512(start + key + message).digest(), "little")
    return start + ((nonce + challenge * secret) % GROUP_ORDER).to_bytes(32, "little")
