"""Take events and answer when they are on disk: our own poster, or the client of another gateway's."""

from concurrent.futures import Future
from typing import Protocol

from accounting.ledger.postings import Posted, Posting


class Writer(Protocol):
    """`submit` as `accounting.ledger.poster.Poster` has it: callable on any thread, answered after the commit."""

    def submit(self, posting: Posting, *, urgent: bool = True) -> "Future[Posted]":
        """Submit an event.

        Raises LedgerBusy, PosterStopped; the future raises PostingDenied and LedgerUnavailable.
        """
        ...
