"""Every message between machines and processes of a cluster, and the one frame codec they travel in.

A frame is a fixed 16-byte header, a msgpack-encoded message and, for tensors and file parts, raw payload
bytes that are never copied into the message:

    magic "MRCW" | version u16 | reserved u16 | message length u32 | payload length u32 | message | payload

Whoever reads a frame checks both lengths against a bound before it allocates anything.
"""

import struct
from typing import Literal

import msgspec
from msgspec import Struct

from cluster.compute.pooling import Recipe
from cluster.embedding import EmbedRequest
from cluster.errors import FrameInvalid
from cluster.generation import GenerateRequest, GenerationEvent, SampledToken, Sampling
from cluster.models.manifest import Manifest
from cluster.nodes.condition import Condition
from cluster.nodes.probe import Machine
from cluster.plans.network import Link
from cluster.plans.plan import StageSpec
from cluster.trust.identity import NodeId

PROTOCOL_VERSION = 1
ANY_EPOCH = 0

Cause = Literal["error", "ended", "silent", "stuck"]
"""Why a process cannot go on: it says so, it is gone, it says nothing, or the whole ring gets no further."""
HEADER = struct.Struct("!4sHHII")
SEAL_KEY_BYTES = 32
MESSAGE_BYTES_MAX = 16 * 2**20
# Orders carry the whole manifest: 138,000 tensors of the largest open models come to some 25 MB.
ORDER_BYTES_MAX = 64 * 2**20
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
    """Why the connection ends; always the last message on it. `removed` says that only a new token helps."""

    reason: str
    removed: bool = False


# Control: between the controller and a node's agent.


class Hello(Struct, frozen=True, tag=True):
    """Who wants to take part, with which program; at `files_port` other nodes may fetch what it holds.

    The controller refuses another program or protocol, naming both; `torch` is for people.
    """

    name: str
    machine: Machine
    program: str = ""
    protocol: int = 0
    torch: str = ""
    files_port: int = 0


class Welcome(Struct, frozen=True, tag=True):
    heartbeat_ms: int
    patience_ms: int


class Vitals(Struct, frozen=True, array_like=True):
    """How far a process has come in the present ring: frames in and out; of a head also what it holds."""

    received: int
    sent: int
    requests: int = 0
    kv_blocks: int = 0


class Heartbeat(Struct, frozen=True, tag=True):
    """`vitals` are by role; `silent` names the roles whose processes show no sign of life.

    `sent_at_s` is the machine's own clock, in seconds since 1970.
    """

    memory_usable_bytes: int
    vitals: dict[str, Vitals] = {}
    silent: list[str] = []
    sent_at_s: float = 0.0


class MeasureLinks(Struct, frozen=True, tag=True):
    """Measure the links to these echo doors, one after the other."""

    peers: list[Address]


class MeasuredLink(Struct, frozen=True):
    """From the reporting node to another one; without figures it could not be measured, for this reason."""

    node_id: NodeId
    link: Link | None
    reason: str = ""


class LinkReport(Struct, frozen=True, tag=True):
    """A node's echo door is on `port`; how its machine does; and the links that it was told to measure."""

    port: int
    links: list[MeasuredLink] = []
    condition: Condition = Condition()


class Renew(Struct, frozen=True, tag=True):
    """A node's certificate nears its end: certify the same key again."""

    signing_request_pem: str


class Renewed(Struct, frozen=True, tag=True):
    certificate_pem: str


class Removed(Struct, frozen=True, tag=True):
    """All machines that are out, though their certificates have not ended: nobody talks to them any more."""

    node_ids: list[NodeId]


class Tick(Struct, frozen=True, tag=True):
    """A sign of life: the controller's answer to a heartbeat; between agent and child, question and answer."""

    vitals: Vitals | None = None


class Terms(Struct, frozen=True):
    """What all processes of a ring must agree on: the model's digest and the arithmetic."""

    digest: str = ""
    precision: str = ""


NO_TERMS = Terms()


class AssignStage(Struct, frozen=True, tag=True):
    """Load these layers. `source` is the model's folder where sender and receiver share files.

    Only the node `upstream` may open a ring link to this stage. With `keep_kv` a stage that already holds just
    these layers keeps its keys and values and its stored output rows, too. `seal_key` goes to the last stage and
    the head.
    """

    epoch: int
    spec: StageSpec
    manifest: Manifest
    source: str
    upstream: NodeId
    keep_kv: bool = False
    seal_key: bytes = b""
    sources: list[Address] = []


class AssignHead(Struct, frozen=True, tag=True):
    epoch: int
    manifest: Manifest
    source: str
    upstream: NodeId
    stages: int
    context_tokens: int
    kv_blocks: int
    slots: int
    terms: Terms = NO_TERMS
    seal_key: bytes = b""
    sources: list[Address] = []


class AssignEmbedder(Struct, frozen=True, tag=True):
    """Load a whole embedding model and take callers for it. These orders have epochs of their own."""

    epoch: int
    manifest: Manifest
    source: str
    recipe: Recipe
    sources: list[Address] = []


class Prepare(Struct, frozen=True, tag=True):
    """Get the files for these layers, while another ring still serves.

    `sources` are nodes that may have them, the nearest first; the controller comes after them all.
    """

    epoch: int
    spec: StageSpec
    manifest: Manifest
    source: str
    sources: list[Address] = []


class Shelve(Struct, frozen=True, tag=True):
    """Load these layers beside what is served: a hot standby, which a later AssignStage takes without loading.

    Of what is on the shelf already only `others` stay.
    """

    epoch: int
    spec: StageSpec
    manifest: Manifest
    source: str
    sources: list[Address] = []
    others: list[StageSpec] = []


class Shelved(Struct, frozen=True, tag=True):
    """The answer to Shelve for these layers.

    `reason` says why not when `ok` is false; there is none when they are not wanted any more.
    """

    epoch: int
    spec: StageSpec
    ok: bool
    reason: str = ""


class Tidy(Struct, frozen=True, tag=True):
    """Of what is on the shelf only these layers, of the model with this manifest digest, stay. Nobody answers."""

    epoch: int
    digest: str
    specs: list[StageSpec]


class Prepared(Struct, frozen=True, tag=True):
    """The files are here and are the pinned ones."""

    epoch: int


class Ready(Struct, frozen=True, tag=True):
    """The assigned process listens for its upstream on `port`; a head takes callers on `client_port`.

    `kept` says of a stage that its keys and values are those of the ring before. `terms` and `wire` are what it
    has really loaded.
    """

    epoch: int
    role: str
    host: str
    port: int
    client_port: int = 0
    kept: bool = False
    terms: Terms = NO_TERMS
    wire: str = ""


class Connect(Struct, frozen=True, tag=True):
    """Close the ring: open a link to `downstream`. A head learns which stages, by index, hold nothing yet.

    It learns by `after_error`, too, whether the last ring was broken by a stage's own error or the end of its
    process: what was being computed then may be to blame.
    """

    epoch: int
    role: str
    downstream: Address
    fresh: list[int] = []
    after_error: bool = False


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
    cause: Cause = "error"


class Dismiss(Struct, frozen=True, tag=True):
    """Take part in no ring older than `epoch`; `role` says who, when not everybody on the machine.

    An embedder, which is in no ring, ends when it alone is dismissed.
    """

    epoch: int
    role: str = ""


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


# Files: from one node's agent to another's.


class AskHeld(Struct, frozen=True, tag=True):
    """What have you got of the model with this manifest digest? Fetches on this connection are for it."""

    manifest: str


class Held(Struct, frozen=True, tag=True):
    """Digests of the tensors and small files that lie there whole and checked."""

    sha256s: list[str]


# The ring: head -> first stage -> ... -> last stage -> head.


class RingHello(Struct, frozen=True, tag=True):
    epoch: int
    terms: Terms = NO_TERMS


class OpenSlot(Struct, frozen=True, array_like=True):
    """A sequence moves into a slot; the last stage needs its sampling and the tokens it already has."""

    slot: int
    sampling: Sampling
    history: list[int]
    prompt_tokens: int


class Move(Struct, frozen=True, array_like=True):
    """Begin `slot` with the first `tokens` tokens of the slot `source`; without a source, free it."""

    slot: int
    source: int = -1
    tokens: int = 0


class Step(Struct, tag=True):
    """One micro-batch on its way through the stages.

    Row groups i belong to slot `slots[i]`, begin at position `starts[i]` and are `counts[i]` long; `wanted[i]` of
    its last rows are to be sampled. All but the first of these are drafts, which `drafts[i]` repeats for the last
    stage: it stops at the first that the model does not agree with. `moves` are carried out in order and `opened`
    slots set up before any row runs. The payload holds int32 token ids on the first link and rows
    [sum(counts), hidden] in the plan's wire format on the others. `spent_ns` gathers the stages' busy time.
    On links `drafts` and `opened` travel in `sealed`, which only the last stage can read: they are tokens.

    `replay` names stages that have lost their keys and values: rows travel only into these, from the output rows
    that the stages before them have kept. `census` has the (slot, blocks) that a stage must hold; a reset makes it
    so, otherwise a difference is an error.
    """

    epoch: int
    batch: int
    slots: list[int]
    starts: list[int]
    counts: list[int]
    wanted: list[int]
    drafts: list[list[int]]
    opened: list[OpenSlot]
    moves: list[Move]
    replay: list[int]
    census: list[tuple[int, int]] | None
    is_reset: bool
    spent_ns: list[int]
    sealed: bytes = b""

    @property
    def rows(self) -> int:
        return sum(self.counts)


class Sampled(Struct, frozen=True, tag=True):
    """The batch's tokens: `counts[i]` of them, at least one, for the i-th of its groups that wanted any."""

    epoch: int
    batch: int
    tokens: list[SampledToken]
    counts: list[int]
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


# Callers: between an EmbeddingClient and an embedder, beside Cancel and Rejected.


class Embed(Struct, frozen=True, tag=True):
    request: EmbedRequest


class Embedded(Struct, frozen=True, tag=True):
    """The answer; its payload has the vectors as Embeddings does."""

    request_id: str
    dimensions: int
    token_counts: list[int]
    compute_ns: int


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
    | AssignHead
    | AssignEmbedder
    | Ready
    | Connect
    | Connected
    | RingClosed
    | Failed
    | Dismiss
    | Fetch
    | Part
    | NoPart
    | AskHeld
    | Held
    | RingHello
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
