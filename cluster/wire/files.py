"""Model files: from the controller to a node, and from one node to another."""

from msgspec import Struct


class Fetch(Struct, frozen=True, tag=True):
    """Send me the next part of the bytes with this digest, from `offset` on: a tensor or a small file."""

    sha256: str
    offset: int


class Part(Struct, frozen=True, tag=True):
    """The answer to one Fetch: as many of the bytes as one payload takes."""

    sha256: str
    offset: int
    total_bytes: int


class NoPart(Struct, frozen=True, tag=True):
    """The controller's answer to a Fetch that it cannot answer with a Part."""

    sha256: str
    offset: int
    reason: str


class AskHeld(Struct, frozen=True, tag=True):
    """What have you got of the model with this manifest digest? Fetches on this connection are for it."""

    manifest: str


class Held(Struct, frozen=True, tag=True):
    """Digests of the tensors and small files that lie there whole and checked."""

    sha256s: list[str]
