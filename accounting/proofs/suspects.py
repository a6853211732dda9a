"""Find which event of a block was changed: a block has one hash, but each event keeps its own request hash."""

import json
from collections.abc import Mapping
from operator import itemgetter

from sqlalchemy import Connection

from accounting.ledger.postings import HASHED_USAGE, content_hash
from accounting.proofs.blocks import newest
from accounting.proofs.canonical import USAGE_COLUMNS
from accounting.proofs.entries import AccountCodes, Entries, Entry
from accounting.proofs.tables import BLOCK_EVENTS_MAX

_DIGEST_BYTES = 32

_usage_content = itemgetter(*(USAGE_COLUMNS.index(name) for name in HASHED_USAGE))


def unproven_suspects(connection: Connection) -> tuple[int, ...]:
    """Return the events of the next block whose rows differ from their request hash."""
    after_seq = newest(connection).to_seq
    codes = AccountCodes()
    codes.connection = connection
    with Entries(connection, after_seq + 1, after_seq + BLOCK_EVENTS_MAX) as entries:
        return tuple(int(entry[0][0]) for entry in entries if not matches_request(entry, codes))


def matches_request(entry: Entry, codes: Mapping[int, str]) -> bool:
    """Return whether an event's rows match its request hash: amounts, accounts, references, counts.

    Not every change shows here: no request hash covers times and keys. The result is also true for an event of
    several requests from a version that hashed them in the order in which they ended: no table keeps that order.
    """
    (_, _, kind, req_hash, ref, _, meta), transfers, usages = entry
    request_hash = bytes(req_hash)
    if len(usages) > 1 and len(request_hash) == _DIGEST_BYTES:
        return True
    legs = [
        (json.loads(codes[debit]), json.loads(codes[credit]), amount, phase, pending_seq)
        for _, _, _, debit, credit, amount, phase, pending_seq, _ in transfers
    ]
    try:
        return content_hash(kind, ref, legs, json.loads(meta), list(map(_usage_content, usages))) == request_hash
    except (ValueError, TypeError, AttributeError, RecursionError):
        # No request can have looked like this: meta is no JSON or no object, or a value has another type.
        return False
