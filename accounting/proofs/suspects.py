"""Which event of a block was changed: a block has one hash, but each event keeps that of what was asked for."""

import json
from collections.abc import Iterable, Iterator, Mapping

from accounting.errors import LedgerError
from accounting.ledger.postings import Leg, Posting, UsageRecord, request_hash
from accounting.proofs.canonical import USAGE_COLUMNS
from accounting.proofs.reading import Entry


def suspects(entries: Iterable[Entry], codes: Mapping[int, str]) -> Iterator[int]:
    """Tell the events whose rows are not what their request hash is of: amounts, accounts, references, counts.

    Not all that can be changed shows here: times and keys are in no request hash.
    """
    for entry in entries:
        if not is_as_asked(entry, codes):
            yield int(entry[0][0])


def is_as_asked(entry: Entry, codes: Mapping[int, str]) -> bool:
    """Whether an event's rows are what its request hash is of, or may be: where it ended many requests nobody
    knows the order in which they were hashed."""
    if len(entry[2]) > 1:
        return True
    (_, idem_key, kind, req_hash, ref, _, meta), transfers, usages = entry
    try:
        legs = [
            Leg(json.loads(codes[debit]), json.loads(codes[credit]), amount, phase, pending_seq, expires_ns)
            for _, _, _, debit, credit, amount, phase, pending_seq, expires_ns in transfers
        ]
        used = [UsageRecord(**dict(zip(USAGE_COLUMNS[1:], usage[1:], strict=True))) for usage in usages]
        posting = Posting(idem_key, kind, ref, tuple(legs), json.loads(meta), tuple(used))
        return request_hash(posting) == bytes(req_hash)
    except (LedgerError, ValueError, AttributeError):
        # Nobody could have asked for this; or meta is no JSON, or not an object.
        return False
