"""Files and batches as the rest of the gateway sees them: where they are kept, and who is told of news."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from sqlalchemy.orm import Session

from gateway.batches.files import FileStore
from gateway.batches.receipts import Receipts
from gateway.batches.store import BatchStore
from gateway.settings.batches import BatchesSettings


class Batches:
    """Owned by one event loop. The runner waits for `changed`, and asks the database where there `is_news`."""

    def __init__(
        self, read: Callable[[], Session], write: Callable[[], Session], folder: Path, bounds: BatchesSettings
    ) -> None:
        self.store = BatchStore(read, write, bounds.per_person_max)
        self.files = FileStore(read, write, folder, bounds)
        self.receipts = Receipts()
        self.changed = asyncio.Event()
        self.is_news = True

    def open(self) -> None:
        """Does I/O; before anything else."""
        self.files.open(self.store.unfinished())

    def wake(self) -> None:
        """A batch was begun or cancelled."""
        self.is_news = True
        self.changed.set()
