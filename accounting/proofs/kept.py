"""Keep the newest block that a gateway has seen in a file beside its signing key.

Anyone who may write to the database can remove blocks and change what they proved. The gateway's own note reveals
that, because it is a file. It is written after the block is committed. If the gateway is killed in between, the
database is ahead of the note, which is allowed. A database behind its note, or with another hash, is not.
"""

from pathlib import Path

from accounting.proofs.blocks import Checkpoint
from runtime.files import replace_file

_SUFFIX = ".checkpoint"
_BYTES_MAX = 200


class CheckpointUnusable(RuntimeError):
    """Raised when the file of the newest block cannot be read, written or understood."""


class KeptCheckpoint:
    """The newest block seen, in memory and in a file; None until there is one. The maker of blocks writes it.

    Raises:
        CheckpointUnusable: the file exists and cannot be read or understood.
    """

    def __init__(self, key: Path) -> None:
        self.path = key.with_suffix(_SUFFIX)
        self.checkpoint = self._in_file = self._read()

    def keep(self, checkpoint: Checkpoint) -> None:
        """Keep a block. Raises CheckpointUnusable if the file cannot be written; memory is updated all the same."""
        self.checkpoint = checkpoint
        if checkpoint != self._in_file:
            try:
                replace_file(self.path, f"{checkpoint}\n")
            except OSError as error:
                raise CheckpointUnusable(f"{self.path} cannot be written: {error.strerror}") from error
            self._in_file = checkpoint

    def accepted(self) -> Checkpoint | None:
        """Return the block that an operator has put into the file since it was last written; None if none has.

        Raises CheckpointUnusable.
        """
        found = self._read()
        return found if found != self._in_file else None

    def _read(self) -> Checkpoint | None:
        try:
            with self.path.open("rb") as file:
                return Checkpoint.parse(file.read(_BYTES_MAX).decode().strip())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointUnusable(f"{self.path} cannot be read: {error.strerror}") from error
        except ValueError:
            raise CheckpointUnusable(
                f"{self.path} is damaged. Take it from the backup, or compare the newest block with one that you "
                "kept (millrace ledger verify --known N:HASH), delete the file and start the gateway."
            ) from None
