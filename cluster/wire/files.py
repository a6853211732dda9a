"""Messages that transfer model files: from the controller to a node, and from one node to another."""

from msgspec import Struct


class Fetch(Struct, frozen=True, tag=True):
    """A request for the next part of the bytes with this digest, from `offset` on: a tensor or a small file."""

    sha256: str
    offset: int


class Part(Struct, frozen=True, tag=True):
    """The answer to one Fetch: as many of the bytes as fit in one payload."""

    sha256: str
    offset: int
    total_bytes: int


class NoPart(Struct, frozen=True, tag=True):
    """The controller's answer to a Fetch that it cannot answer with a Part."""

    sha256: str
    offset: int
    reason: str


class AskHeld(Struct, frozen=True, tag=True):
    """The question what a node holds of the model with this manifest digest. Later fetches are for this model."""

    manifest: str


class Held(Struct, frozen=True, tag=True):
    """The digests of the tensors and small files that the node holds complete and checked."""

    sha256s: list[str]
