"""What the controller has nodes do, and what they answer."""

from typing import Literal

from msgspec import Struct

from cluster.models.manifest import Manifest
from cluster.models.pooling import Recipe
from cluster.models.stage_spec import StageSpec
from cluster.trust.identity import NodeId
from cluster.wire.addresses import Address

ANY_EPOCH = 0
SEAL_KEY_BYTES = 32

Cause = Literal["error", "ended", "silent", "stuck", "invalid"]
"""Why a process cannot go on: it says so, it is gone, it says nothing, or the whole ring gets no further."""


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
    has really loaded. `unconstrained` is why it cannot hold answers to a schema, empty when it can or need not.
    """

    epoch: int
    role: str
    host: str
    port: int
    client_port: int = 0
    kept: bool = False
    terms: Terms = NO_TERMS
    wire: str = ""
    unconstrained: str = ""


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
    """The process with this role cannot go on in this epoch; `peer_id` is the machine that it could not reach.

    With the cause "invalid" that machine has sent what does not belong in this epoch's ring.
    """

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
