"""Keep the newest block that a gateway has seen in a file beside its signing key.

Anyone who may write to the database can remove blocks and change what they proved. The gateway's own note reveals
that, because it is a file. It is written after the block is committed. If the gateway is killed in between, the
database is ahead of the note, which is allowed. A database behind its note, or with another hash, is not.
"""

from pathlib import Path

from accounting.proofs.blocks import Head
from accounting.proofs.signing_key import replace_file

_SUFFIX = ".head"
_BYTES_MAX = 200


class CoordinatorUnusable(RuntimeError):
    """Raised when the file of the newest block cannot be read, written or understood."""


class KeptHead:
    """The newest block seen, in memory and in a file; None until there is one. The maker of blocks writes it.

    Raises:
        HeadUnusable: the file exists and cannot be read or understood.
    """

    def __init__(self, key: Path) -> None:
        self.path = key.with_suffix(_SUFFIX)
        self.head = self._in_file = self._read()

    def keep(self, head: Head) -> None:
        """Keep a block. Raises HeadUnusable if the file cannot be written; memory is updated all the same."""
        self.head = head
        if head != self._in_file:
            try:
                replace_file(self.path, f"{head}\n".encode())
            except OSError as error:
                raise CoordinatorUnusable(f"{self.path} cannot be written: {error.strerror}") from error
            self._in_file = head

    def accepted(self) -> Head | None:
        """Return the block that an operator has put into the file since it was last written; None if none has.

        Raises HeadUnusable.
        """
        found = self._read()
        return found if found != self._in_file else None

    def _read(self) -> Head | None:
        try:
            with self.path.open("rb") as file:
                return Head.parse(file.read(_BYTES_MAX).decode().strip())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CoordinatorUnusable(f"{self.path} cannot be read: {error.strerror}") from error
        except ValueError:
            raise CoordinatorUnusable(
                f"{self.path} is damaged. Take it from the backup, or compare the newest block with one that you "
                "kept (millrace ledger verify --known N:HASH), delete the file and start the gateway."
            ) from None
