"""Prove who answers at an address: TLS only proves the name, and a tunnel's name may change hands.

    GET ADDRESS/market/v1/challenge/NONCE -> {"identity": ..., "signature": ..., ...}

The server may have forwarded the challenge to the right seller. It gains nothing by that, because bodies are
sealed for the seller's key. The challenge only keeps us from listing or asking an address that leads elsewhere.
"""

import secrets

import msgspec

from accounting.proofs.signing_key import is_signed
from market.network.outbound import Outbound, Unreachable
from market.protocol.records.envelope import Hex32, Hex64

DOMAIN = b"millrace challenge\n"
PATH = "/market/v1/challenge/"
_BYTES_MAX = 2**19


class ChallengeAnswer(msgspec.Struct, frozen=True):
    identity: Hex32
    signature: Hex64


async def is_behind(outbound: Outbound, address: str, identity: str, key: str, timeout_s: float = 10.0) -> bool:
    """Return whether the holder of this public key (hex) answers at an address, as this identity."""
    nonce = secrets.token_hex(32)
    try:
        reply = await outbound.ask(address + PATH + nonce, timeout_s=timeout_s, bytes_max=_BYTES_MAX)
        answer = msgspec.json.decode(reply.body, type=ChallengeAnswer)
    except (Unreachable, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    signed = DOMAIN + bytes.fromhex(nonce)
    return answer.identity == identity and is_signed(bytes.fromhex(key), bytes.fromhex(answer.signature), signed)
