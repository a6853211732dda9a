"""Putting a mistake right: by an event of its own, for nothing that was booked is ever changed."""

from accounting.ledger.postings import Leg, Posting
from accounting.money import checked_nano


def correction(incident: str, account: str, counterpart: str, amount_nano: int, reason: str = "") -> Posting:
    """Move what a mistake has misplaced: `account -> counterpart`; run twice, it is booked once.

    `incident` names the mistake. It may misplace money on many accounts; each is corrected once, under a key of
    both, so that a repair that was cut short is simply run again.
    """
    leg = Leg(account, counterpart, checked_nano(amount_nano))
    meta = {"reason": reason} if reason else {}
    return Posting(f"fix:{incident}:{account}", "correction", incident, (leg,), meta)
