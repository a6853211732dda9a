"""What an owner and its counting process say to each other: frames of msgpack, each behind its length."""

import struct
from typing import Literal

import msgspec

LENGTH = struct.Struct(">I")
FRAME_BYTES_MAX = 2**26 + 2**16
"""A tokenizer with what is around it."""
BATCH_CHARS = 2**16
BATCH_SEGMENTS = 2**12


class Limits(msgspec.Struct, frozen=True):
    """The first frame to the process. What takes more processor time or memory ends it; idle, it ends by itself.

    The time for a count is of at most BATCH_CHARS characters; known models' tokenizers take 0.02 to 0.1 s.
    """

    memory_bytes: int = 2 * 2**30
    load_cpu_s: float = 20.0
    count_cpu_s: float = 2.0
    idle_s: float = 60.0


class Load(msgspec.Struct, frozen=True, tag=True):
    """Answered without counts."""

    sha256: str
    content: bytes


class Count(msgspec.Struct, frozen=True, tag=True):
    """Answered with as many counts as there are segments."""

    sha256: str
    segments: list[str]


Question = Load | Count


class Reply(msgspec.Struct, frozen=True):
    """`unknown`: this tokenizer is not loaded; `refused`: it is not counted with; `failed`: at this text."""

    counts: list[int] = []
    trouble: Literal["", "unknown", "refused", "failed"] = ""
    part: str = ""
    problem: str = ""


def packed(said: Limits | Question | Reply) -> bytes:
    """A frame."""
    body = msgspec.msgpack.encode(said)
    return LENGTH.pack(len(body)) + body
