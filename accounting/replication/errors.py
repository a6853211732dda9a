"""Errors between gateways that share the ledger. All of them pass: gateways send the same keys again."""

from accounting.errors import LedgerUnavailable


class LeaderAway(LedgerUnavailable):
    """Raised when no gateway leads the ledger at the moment, or the leader does not answer."""


class Deposed(LeaderAway):
    """Raised when another process has replaced this one as leader. Nothing of the transaction was booked."""


class MessageInvalid(LeaderAway):
    """Raised when the other end sent a message that cannot be read."""
