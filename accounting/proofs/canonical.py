r"""Define the exact bytes that a block's hash covers. Anyone who has these rows can compute it without us.

    hash = SHA-256(prev || header || line of event from_seq || ... || line of event to_seq)

`prev` is the 32 bytes of the hash of the block before, zeros for block 1. The header and each event are one JSON
object by RFC 8785, in UTF-8, and a line feed:

- Keys are sorted and there are no spaces.
- Every value is a string, an array or an object. Integers of any column are decimal strings, since JSON's
  numbers end at 2**53; bytes are lower-case hex.
- In strings `"` and `\` have a backslash before them; U+0008, 09, 0A, 0C and 0D are `\b \t \n \f \r`; other
  characters below U+0020 are `\u00` and two lower-case hex digits; every other character stands for itself.
- A null column is left out, so a column added later changes no older line.

Header: `events from_seq made_ns n signed_by to_seq`.

Event: `created_ns idem_key kind meta ref req_hash seq`, where `meta` is the text in the ledger;
`transfers`, in the order of their `leg`, each with `amount credit debit expires_ns leg pending_seq phase seq`,
where `credit` and `debit` are the accounts' codes; `usages`, in the order of the code points of `request_id`, each
with the columns of `USAGE_COLUMNS` except `event_seq`.

The signature is Ed25519 over `DOMAIN` and the 32 bytes of the hash.
"""

import hashlib
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring
from operator import itemgetter
from typing import Any, TypeAlias

Row: TypeAlias = tuple[Any, ...]

DOMAIN = b"millrace ledger block\n"
NO_BLOCK = bytes(32)
"""Stands for the hash of the block before the first."""

EVENT_COLUMNS = ("seq", "idem_key", "kind", "req_hash", "ref", "created_ns", "meta")
TRANSFER_COLUMNS = (
    "event_seq",
    "seq",
    "leg",
    "debit",
    "credit",
    "amount",
    "phase",
    "pending_seq",
    "expires_ns",
)
# Listed one by one, not taken from the table. Add a later column here and to `_usage`; it is null in the rows
# # from before.
USAGE_COLUMNS = (
    "event_seq",
    "cached_tokens",
    "charge_nano",
    "completion_tokens",
    "compute_nano",
    "cost_nano",
    "count_source",
    "department",
    "duration_ms",
    "key_id",
    "lane",
    "model",
    "outcome",
    "price_id",
    "prompt_tokens",
    "provider",
    "reasoning_tokens",
    "request_id",
    "served_model",
    "started_ns",
    "tool_tokens",
    "ttft_ms",
    "user_id",
)

_request_id = itemgetter(USAGE_COLUMNS.index("request_id"))


def header_line(n: int, from_seq: int, to_seq: int, made_ns: int, signed_by: str) -> bytes:
    """Return a block's header. `events` follows from the two numbers."""
    return (
        f'{{"events":"{to_seq - from_seq + 1}","from_seq":"{from_seq}","made_ns":"{made_ns}","n":"{n}",'
        f'"signed_by":{encode_basestring(signed_by)},"to_seq":"{to_seq}"}}\n'
    ).encode()


def event_line(event: Row, transfers: Sequence[Row], usages: Sequence[Row], codes: Mapping[int, str]) -> bytes:
    """Return the line of an event with everything that it booked. Columns are as above, transfers by leg.

    `codes` has the accounts' codes as JSON strings.
    """
    text = encode_basestring
    seq, idem_key, kind, req_hash, ref, created_ns, meta = event
    moved = ",".join([_transfer(transfer, codes) for transfer in transfers])
    used = ",".join([_usage(usage) for usage in _in_order(usages)]) if usages else ""
    return (
        f'{{"created_ns":"{created_ns}","idem_key":{text(idem_key)},"kind":{text(kind)},"meta":{text(meta)},'
        f'"ref":{text(ref)},"req_hash":"{req_hash.hex()}","seq":"{seq}","transfers":[{moved}],"usages":[{used}]}}\n'
    ).encode()


def _in_order(usages: Sequence[Row]) -> Sequence[Row]:
    return sorted(usages, key=_request_id) if len(usages) > 1 else usages


def _transfer(transfer: Row, codes: Mapping[int, str]) -> str:
    _, seq, leg, debit, credit, amount, phase, pending_seq, expires_ns = transfer
    expires = "" if expires_ns is None else f'"expires_ns":"{expires_ns}",'
    pending = "" if pending_seq is None else f'"pending_seq":"{pending_seq}",'
    return (
        f'{{"amount":"{amount}","credit":{codes[credit]},"debit":{codes[debit]},'
        f'{expires}"leg":"{leg}",{pending}"phase":{encode_basestring(phase)},"seq":"{seq}"}}'
    )


def _usage(usage: Row) -> str:
    """Return a usage row as JSON.

    Spelled out, because a loop takes three times as long, and every request has a row.
    """
    # fmt: off
    (_, cached_tokens, charge_nano, completion_tokens, compute_nano, cost_nano, count_source, department,
     duration_ms, key_id, lane, model, outcome, price_id, prompt_tokens, provider, reasoning_tokens, request_id,
     served_model, started_ns, tool_tokens, ttft_ms, user_id) = usage
    # fmt: on
    text = encode_basestring
    price = "" if price_id is None else f'"price_id":{text(price_id)},'
    served = "" if served_model is None else f'"served_model":{text(served_model)},'
    ttft = "" if ttft_ms is None else f'"ttft_ms":"{ttft_ms}",'
    return (
        f'{{"cached_tokens":"{cached_tokens}","charge_nano":"{charge_nano}",'
        f'"completion_tokens":"{completion_tokens}","compute_nano":"{compute_nano}","cost_nano":"{cost_nano}",'
        f'"count_source":{text(count_source)},"department":{text(department)},"duration_ms":"{duration_ms}",'
        f'"key_id":{text(key_id)},"lane":{text(lane)},"model":{text(model)},"outcome":{text(outcome)},{price}'
        f'"prompt_tokens":"{prompt_tokens}","provider":{text(provider)},"reasoning_tokens":"{reasoning_tokens}",'
        f'"request_id":{text(request_id)},{served}"started_ns":"{started_ns}","tool_tokens":"{tool_tokens}",{ttft}'
        f'"user_id":{text(user_id)}}}'
    )


def digest(prev: bytes) -> "hashlib._Hash":
    """Return a new hash of a block. The caller adds its header and then its events."""
    return hashlib.sha256(prev)
