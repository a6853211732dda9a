"""An identity's key on disk, and the step from one key to the next that a crash cannot tear apart.

`prepare_successor` makes the next key beside the current one; the rotation is signed and kept; only then does
`adopt_successor` put it in the current one's place. Whoever starts in between finds both keys and the rotation.
"""

from pathlib import Path

from accounting.proofs.signing import KeyFile, Signer


def successor_path(path: Path) -> Path:
    return path.with_name(path.name + ".next")


def prepare_successor(path: Path) -> Signer:
    """The key that will come after this file's, made (mode 0600) where there is none yet.

    Raises:
        SigningKeyUnusable: the file cannot be read, written or understood.
    """
    return KeyFile(successor_path(path)).signer()


def adopt_successor(path: Path, new_key: bytes) -> bool:
    """Put the prepared key in this file's place if it is the one that the rotation names. Raises OSError."""
    following = successor_path(path)
    if not following.exists() or KeyFile(following).signer().public_key != new_key:
        return False
    following.replace(path)
    return True
