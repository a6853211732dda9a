"""The messages between a parent and its counting process: msgpack frames, each after its length."""

import struct
from typing import Literal

import msgspec

LENGTH = struct.Struct(">I")
FRAME_BYTES_MAX = 2**26 + 2**16
"""A tokenizer and its envelope."""
BATCH_CHARS = 2**16
BATCH_SEGMENTS = 2**12


class CountingLimits(msgspec.Struct, frozen=True):
    """The first frame to the process. It ends if it exceeds these limits of CPU time or memory, or stays idle.

    The time for a count covers at most BATCH_CHARS characters; known models' tokenizers take 0.02 to 0.1 s.
    """

    memory_bytes: int = 2 * 2**30
    load_cpu_s: float = 20.0
    count_cpu_s: float = 2.0
    idle_s: float = 60.0


class LoadTokenizer(msgspec.Struct, frozen=True, tag=True):
    """Load a tokenizer; the reply has no counts."""

    sha256: str
    content: bytes


class CountSegments(msgspec.Struct, frozen=True, tag=True):
    """Count segments; the reply has one count for each."""

    sha256: str
    segments: list[str]


CountQuestion = LoadTokenizer | CountSegments


class CountReply(msgspec.Struct, frozen=True):
    """`unknown`: the tokenizer is not loaded. `refused`: it is rejected. `failed`: it fails on this text."""

    counts: list[int] = []
    trouble: Literal["", "unknown", "refused", "failed"] = ""
    part: str = ""
    problem: str = ""


def packed(message: CountingLimits | CountQuestion | CountReply) -> bytes:
    """Return the message as a frame."""
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body
