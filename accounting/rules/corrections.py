"""Correct a mistake by an event of its own, because booked events never change."""

from accounting.ledger.postings import Leg, Posting
from accounting.money import checked_nano


def correction(incident: str, account: str, counterpart: str, amount_nano: int, reason: str = "") -> Posting:
    """Move misplaced money: `account -> counterpart`. Repeating it books it only once.

    `incident` names the mistake. It may have misplaced money on many accounts. Each is corrected once, under a key
    of both, so an interrupted repair can simply be run again.
    """
    leg = Leg(account, counterpart, checked_nano(amount_nano))
    meta = {"reason": reason} if reason else {}
    return Posting(f"fix:{incident}:{account}", "correction", incident, (leg,), meta)
