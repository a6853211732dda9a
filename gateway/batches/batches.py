"""Files and batches as the rest of the gateway uses them: their stores, and a signal for changes."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from sqlalchemy.orm import Session

from gateway.batches.files import FileRegistry
from gateway.batches.receipts import Receipts
from gateway.batches.store import BatchStore
from gateway.settings.batches import BatchesSettings


class Batches:
    """Owned by one event loop. The runner waits for `changed`, and reads the database if `is_news` is set."""

    def __init__(
        self, read: Callable[[], Session], write: Callable[[], Session], folder: Path, bounds: BatchesSettings
    ) -> None:
        self.store = BatchStore(read, write, bounds.per_user_max)
        self.files = FileRegistry(read, write, folder, bounds)
        self.receipts = Receipts()
        self.changed = asyncio.Event()
        self.is_news = True

    def open(self) -> None:
        """Open the files; does I/O, call it before anything else."""
        self.files.open(self.store.unfinished())

    def wake(self) -> None:
        """Signal that a batch was created or cancelled."""
        self.is_news = True
        self.changed.set()
