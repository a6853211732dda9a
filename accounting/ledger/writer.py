"""Whoever takes events and answers when they are on disk: our own poster, or the way to another gateway's."""

from concurrent.futures import Future
from typing import Protocol

from accounting.ledger.postings import Posted, Posting


class Writer(Protocol):
    """`submit` as `accounting.ledger.poster.Poster` has it: on any thread, answered after the commit."""

    def submit(self, posting: Posting, *, urgent: bool = True) -> "Future[Posted]":
        """Raises LedgerBusy, PosterStopped; the future raises PostingDenied and BooksUnavailable."""
        ...

    @property
    def waiting(self) -> int:
        """Events that nobody has begun to book yet."""
        ...
