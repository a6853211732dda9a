"""The one frame codec that all messages travel in.

A frame is a fixed 16-byte header, a msgpack-encoded message and, for tensors and file parts, raw payload
bytes that are never copied into the message:

    magic "MRCW" | version u16 | reserved u16 | message length u32 | payload length u32 | message | payload

A reader checks both lengths against a bound before it allocates anything.
"""

import struct

import msgspec

from cluster.errors import FrameInvalid
from cluster.wire.calls import Cancel, Embed, Embedded, Events, Generate, Rejected
from cluster.wire.enrolment import AskAuthority, Authority, Enrol, Enrolled, Refused
from cluster.wire.files import AskHeld, Fetch, Held, NoPart, Part
from cluster.wire.orders import (
    AssignCoordinator,
    AssignEmbedder,
    AssignStage,
    Connect,
    Connected,
    Dismiss,
    Failed,
    PipelineClosed,
    Prepare,
    Prepared,
    Ready,
    Shelve,
    Shelved,
    Tidy,
    Unload,
)
from cluster.wire.presence import (
    Heartbeat,
    Hello,
    LinkReport,
    MeasureLinks,
    Removed,
    Renew,
    Renewed,
    Tick,
    Welcome,
)
from cluster.wire.steps import PipelineHello, Sampled, Step

PROTOCOL_VERSION = 2
HEADER = struct.Struct("!4sHHII")
MESSAGE_BYTES_MAX = 16 * 2**20
# Orders carry the whole manifest: 138,000 tensors of the largest open models come to some 25 MB.
ORDER_BYTES_MAX = 64 * 2**20
PAYLOAD_BYTES_MAX = 256 * 2**20

_MAGIC = b"MRCW"

Message = (
    AskAuthority
    | Authority
    | Enrol
    | Enrolled
    | Refused
    | Hello
    | Welcome
    | Heartbeat
    | MeasureLinks
    | LinkReport
    | Renew
    | Renewed
    | Removed
    | Tick
    | Prepare
    | Prepared
    | Shelve
    | Shelved
    | Tidy
    | AssignStage
    | AssignCoordinator
    | AssignEmbedder
    | Ready
    | Connect
    | Connected
    | PipelineClosed
    | Failed
    | Dismiss
    | Unload
    | Fetch
    | Part
    | NoPart
    | AskHeld
    | Held
    | PipelineHello
    | Step
    | Sampled
    | Generate
    | Cancel
    | Events
    | Rejected
    | Embed
    | Embedded
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message, payload_bytes: int = 0) -> bytes:
    """Return header and message of a frame. The caller sends `payload_bytes` bytes of payload after it."""
    body = _encoder.encode(message)
    return HEADER.pack(_MAGIC, PROTOCOL_VERSION, 0, len(body), payload_bytes) + body


def read_header(
    header: bytes | bytearray | memoryview,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    payload_bytes_max: int = PAYLOAD_BYTES_MAX,
) -> tuple[int, int]:
    """Return the lengths of the message and the payload that follow, in bytes. Raise FrameInvalid."""
    magic, version, _, message_bytes, payload_bytes = HEADER.unpack(header)
    if magic != _MAGIC:
        raise FrameInvalid("not a frame of a Millrace cluster")
    if version != PROTOCOL_VERSION:
        raise FrameInvalid(f"peer speaks protocol {version}, this program speaks {PROTOCOL_VERSION}")
    if message_bytes > message_bytes_max or payload_bytes > payload_bytes_max:
        raise FrameInvalid(
            f"frame of {message_bytes} + {payload_bytes} bytes is larger than "
            f"{message_bytes_max} + {payload_bytes_max}"
        )
    return message_bytes, payload_bytes


def decode(body: bytes | bytearray | memoryview) -> Message:
    """Return the message of a frame. Raise FrameInvalid if it cannot be decoded."""
    try:
        message: Message = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FrameInvalid(f"message cannot be read: {error}") from None
    return message
