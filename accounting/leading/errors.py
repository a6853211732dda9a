"""What can go wrong between gateways that share the books. All of it passes: the same keys are sent again."""

from accounting.errors import BooksUnavailable


class LeaderAway(BooksUnavailable):
    """Nobody leads the books at the moment, or whoever does cannot be reached."""


class Deposed(LeaderAway):
    """This process led the books, and another one does now: nothing of the transaction was booked."""


class FrameInvalid(LeaderAway):
    """The other end sent what is no frame of ours."""
