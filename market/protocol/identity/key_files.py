"""Store an identity's key on disk, and move from one key to the next in a crash-safe way.

`prepare_successor` creates the next key beside the current one. The rotation is signed and stored. Only then does
`adopt_successor` replace the current key. After a crash in between, both keys and the rotation exist.
"""

from pathlib import Path

from accounting.proofs.signing_key import KeyFile, Signer


def successor_path(path: Path) -> Path:
    return path.with_name(path.name + ".next")


def prepare_successor(path: Path) -> Signer:
    """Return the key that will follow this file's. Create it (mode 0600) if it does not exist.

    Raises:
        SigningKeyUnusable: the file cannot be read, written or understood.
    """
    return KeyFile(successor_path(path)).signer()


def adopt_successor(path: Path, new_key: bytes) -> bool:
    """Replace this file with the prepared key if it is the one that the rotation names. Raises OSError."""
    following = successor_path(path)
    if not following.exists() or KeyFile(following).signer().public_key != new_key:
        return False
    following.replace(path)
    return True
