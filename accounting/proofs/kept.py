"""The newest block that a gateway has seen, kept beside its signing key.

Whoever may write the database can take blocks away and change what they proved. The gateway's own note of the
newest block shows it, for it is a file. The note is written after the block is committed: a gateway that is killed
in between finds the database ahead of its note, which is allowed. The database behind its note, or with another
hash, is not.
"""

from pathlib import Path

from accounting.proofs.blocks import Head
from accounting.proofs.signing import replace_file

_SUFFIX = ".head"
_BYTES_MAX = 200


class HeadUnusable(RuntimeError):
    """The file of the newest block cannot be read, written or understood."""


class KeptHead:
    """The newest block seen, in memory and in a file; None until there is one. The maker of blocks writes it.

    Raises:
        HeadUnusable: the file is there and cannot be read or understood.
    """

    def __init__(self, key: Path) -> None:
        self.path = key.with_suffix(_SUFFIX)
        self.head = self._in_file = self._read()

    def keep(self, head: Head) -> None:
        """Raises HeadUnusable if the file cannot be written; memory has it all the same."""
        self.head = head
        if head != self._in_file:
            try:
                replace_file(self.path, f"{head}\n".encode())
            except OSError as error:
                raise HeadUnusable(f"{self.path} cannot be written: {error.strerror}") from error
            self._in_file = head

    def accepted(self) -> Head | None:
        """The block that an operator has put into the file since it was written, if somebody did.

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
            raise HeadUnusable(f"{self.path} cannot be read: {error.strerror}") from error
        except ValueError:
            raise HeadUnusable(
                f"{self.path} is damaged. Take it from the backup, or compare the newest block with one that you "
                "kept (millrace ledger verify --known N:HASH), delete the file and start the gateway."
            ) from None
