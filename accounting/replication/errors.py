"""Errors between gateways that share the books. All of them pass: gateways send the same keys again."""

from accounting.errors import BooksUnavailable


class LeaderAway(BooksUnavailable):
    """Raised when no gateway leads the books at the moment, or the leader cannot be reached."""


class Deposed(LeaderAway):
    """Raised when another process has replaced this one as leader. Nothing of the transaction was booked."""


class FrameInvalid(LeaderAway):
    """Raised when the other end sent an invalid frame."""
