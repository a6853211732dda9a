"""Make the single transfer that every rule uses."""

from accounting.ledger.postings import Leg


def moved(debit: str, credit: str, amount_nano: int) -> tuple[Leg, ...]:
    """Return the transfer, or none if there is nothing to move."""
    return (Leg(debit, credit, amount_nano),) if amount_nano else ()
