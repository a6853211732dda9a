"""Every message between machines and processes of a cluster, and the one frame codec they travel in.

A frame is a fixed 16-byte header, a msgpack-encoded message and, for tensors and file parts, raw payload
bytes that are never copied into the message:

    magic "MRCW" | version u16 | reserved u16 | message length u32 | payload length u32 | message | payload

Whoever reads a frame checks both lengths against a bound before it allocates anything.
"""

import struct

import msgspec
from msgspec import Struct

from cluster.errors import FrameInvalid
from cluster.generation import GenerateRequest, GenerationEvent, SampledToken, Sampling
from cluster.identity import NodeId
from cluster.manifest import Manifest
from cluster.plan import StageSpec
from cluster.probe import Machine

PROTOCOL_VERSION = 1
ANY_EPOCH = 0
HEADER = struct.Struct("!4sHHII")
MESSAGE_BYTES_MAX = 16 * 2**20
PAYLOAD_BYTES_MAX = 256 * 2**20

_MAGIC = b"MRCW"


class Address(Struct, frozen=True):
    """Where a process of a node listens for links, and whose certificate must answer there."""

    node_id: NodeId
    host: str
    port: int


# Joining: on the controller's port, before the new machine has a certificate.


class AskAuthority(Struct, frozen=True, tag=True):
    """Which certificate authority signs here? The asker checks it against the join token's fingerprint."""


class Authority(Struct, frozen=True, tag=True):
    certificate_pem: str


class Enrol(Struct, frozen=True, tag=True):
    token: str
    signing_request_pem: str


class Enrolled(Struct, frozen=True, tag=True):
    certificate_pem: str


class Refused(Struct, frozen=True, tag=True):
    """Why the connection ends; always the last message on it."""

    reason: str


# Control: between the controller and a node's agent.


class Hello(Struct, frozen=True, tag=True):
    name: str
    machine: Machine


class Welcome(Struct, frozen=True, tag=True):
    heartbeat_ms: int
    patience_ms: int


class Heartbeat(Struct, frozen=True, tag=True):
    memory_usable_bytes: int


class Tick(Struct, frozen=True, tag=True):
    """A sign of life: the controller's answer to a heartbeat; between agent and child, question and answer."""


class AssignStage(Struct, frozen=True, tag=True):
    """Load these layers. `source` is the model's folder where sender and receiver share files.

    Only the node `upstream` may open a ring link to this stage.
    """

    epoch: int
    spec: StageSpec
    manifest: Manifest
    source: str
    upstream: NodeId


class AssignHead(Struct, frozen=True, tag=True):
    epoch: int
    manifest: Manifest
    source: str
    upstream: NodeId
    stages: int
    context_tokens: int
    kv_blocks: int
    slots: int


class Prepare(Struct, frozen=True, tag=True):
    """Get the files for these layers, while another ring still serves."""

    epoch: int
    spec: StageSpec
    manifest: Manifest
    source: str


class Prepared(Struct, frozen=True, tag=True):
    """The files are here and are the pinned ones."""

    epoch: int


class Ready(Struct, frozen=True, tag=True):
    """The assigned process listens for its upstream on `port`; a head takes callers on `client_port`."""

    epoch: int
    role: str
    host: str
    port: int
    client_port: int = 0


class Connect(Struct, frozen=True, tag=True):
    """Close the ring: open a link to `downstream`."""

    epoch: int
    role: str
    downstream: Address


class Connected(Struct, frozen=True, tag=True):
    """This stage's link downstream stands."""

    epoch: int


class RingClosed(Struct, frozen=True, tag=True):
    """A first frame went all the way round."""

    epoch: int
    round_trip_ms: float


class Failed(Struct, frozen=True, tag=True):
    """The process with this role cannot go on in this epoch; `peer_id` is the machine that it could not reach."""

    epoch: int
    role: str
    reason: str
    peer_id: str = ""


class Dismiss(Struct, frozen=True, tag=True):
    """Forget every assignment older than `epoch`: unload weights, end heads."""

    epoch: int


class Fetch(Struct, frozen=True, tag=True):
    """Send me the next part of the bytes with this digest, from `offset` on: a tensor or a small file."""

    sha256: str
    offset: int


class Part(Struct, frozen=True, tag=True):
    """The answer to one Fetch: as many of the bytes as one payload takes."""

    sha256: str
    offset: int
    total_bytes: int


# The ring: head -> first stage -> ... -> last stage -> head.


class RingHello(Struct, frozen=True, tag=True):
    epoch: int


class OpenSlot(Struct, frozen=True, array_like=True):
    """A sequence moves into a slot; the last stage needs its sampling and the tokens it already has."""

    slot: int
    sampling: Sampling
    history: list[int]
    prompt_tokens: int


class Step(Struct, frozen=True, tag=True):
    """One micro-batch on its way through the stages.

    Row groups i belong to slot `slots[i]`, begin at position `starts[i]` and are `counts[i]` long;
    `wanted[i]` says whether its last row is to be sampled. `closed` slots are freed before, `opened`
    ones set up before anything runs. The payload holds int32 token ids on the first link and rows
    [sum(counts), hidden] in the pinned dtype on the others. `spent_ns` gathers the stages' busy time.
    """

    epoch: int
    batch: int
    slots: list[int]
    starts: list[int]
    counts: list[int]
    wanted: list[bool]
    opened: list[OpenSlot]
    closed: list[int]
    spent_ns: list[int]

    @property
    def rows(self) -> int:
        return sum(self.counts)


class Sampled(Struct, frozen=True, tag=True):
    """One token for each wanted row group of the batch, in its order."""

    epoch: int
    batch: int
    tokens: list[SampledToken]
    spent_ns: list[int]


# Callers: between a HeadClient and a head.


class Generate(Struct, frozen=True, tag=True):
    request: GenerateRequest


class Cancel(Struct, frozen=True, tag=True):
    request_id: str


class Events(Struct, frozen=True, tag=True):
    """What happened to one request since the last such message."""

    request_id: str
    events: list[GenerationEvent]


class Rejected(Struct, frozen=True, tag=True):
    """The request has ended without its answer; `code` is that of a GenerationError."""

    request_id: str
    code: str
    message: str
    param: str | None = None


class Drain(Struct, frozen=True, tag=True):
    """Finish what runs, start nothing new."""


class Drained(Struct, frozen=True, tag=True):
    pass


Message = (
    AskAuthority
    | Authority
    | Enrol
    | Enrolled
    | Refused
    | Hello
    | Welcome
    | Heartbeat
    | Tick
    | Prepare
    | Prepared
    | AssignStage
    | AssignHead
    | Ready
    | Connect
    | Connected
    | RingClosed
    | Failed
    | Dismiss
    | Fetch
    | Part
    | RingHello
    | Step
    | Sampled
    | Generate
    | Cancel
    | Events
    | Rejected
    | Drain
    | Drained
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message, payload_bytes: int = 0) -> bytes:
    """Header and message of a frame; the caller sends `payload_bytes` bytes of payload after it."""
    body = _encoder.encode(message)
    return HEADER.pack(_MAGIC, PROTOCOL_VERSION, 0, len(body), payload_bytes) + body


def read_header(
    header: bytes | bytearray | memoryview,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    payload_bytes_max: int = PAYLOAD_BYTES_MAX,
) -> tuple[int, int]:
    """Lengths of the message and the payload that follow. Raises FrameInvalid."""
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
    """The message of a frame. Raises FrameInvalid."""
    try:
        message: Message = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FrameInvalid(f"message cannot be read: {error}") from None
    return message
