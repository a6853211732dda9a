"""The controller's orders to nodes, and their answers."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from cluster.models.manifest import Manifest
from cluster.models.pooling import Recipe
from cluster.models.stage_spec import StageSpec
from cluster.trust.identity import NodeId
from cluster.wire.addresses import Address

ANY_EPOCH = 0
SEAL_KEY_BYTES = 32

Cause = Literal["error", "ended", "silent", "stuck", "invalid"]
"""Why a process cannot go on.

"error": the process reports an error. "ended": the process is gone. "silent": it shows no sign of life. "stuck":
the whole pipeline makes no progress. "invalid": a peer sent a frame that does not belong there.
"""


class Terms(Struct, frozen=True):
    """The terms on which all processes of a pipeline must agree: the model's digest and the arithmetic."""

    digest: str = ""
    precision: str = ""


NO_TERMS = Terms()


DEPLOYMENT_CHARACTERS_MAX = 300

DeploymentName = Annotated[str, Meta(max_length=DEPLOYMENT_CHARACTERS_MAX)]
"""The name of a deployment: one model that the cluster serves. A message with a longer name is not read."""


class DeploymentMessage(Struct, frozen=True, kw_only=True):
    """An order to a node about one deployment, or a node's answer. Each deployment has its own epochs.

    The controller's `Subscription` and the node's agent fill in the name. Their processes serve one deployment.
    """

    deployment: DeploymentName = ""


class AssignStage(DeploymentMessage, frozen=True, tag=True):
    """The order to load these layers. `source` is the model's folder if sender and receiver share files.

    Only the node `upstream` may open a pipeline link to this stage. With `keep_kv` a stage that already holds
    exactly these layers keeps its KV cache and its stored output rows, too. Only the last stage and the
    coordinator get `seal_key`.
    """

    epoch: int
    spec: StageSpec
    manifest: Manifest
    source: str
    upstream: NodeId
    keep_kv: bool = False
    seal_key: bytes = b""
    sources: list[Address] = []


class AssignCoordinator(DeploymentMessage, frozen=True, tag=True):
    """The order to coordinate a pipeline: to schedule its steps and to take callers."""

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


class AssignEmbedder(DeploymentMessage, frozen=True, tag=True):
    """The order to load a whole embedding model and take callers for it."""

    epoch: int
    manifest: Manifest
    source: str
    recipe: Recipe
    sources: list[Address] = []


class Prepare(DeploymentMessage, frozen=True, tag=True):
    """The order to get the files for these layers, while another pipeline still serves.

    `sources` are nodes that may have them, nearest first; the controller comes after all of them.
    """

    epoch: int
    spec: StageSpec
    manifest: Manifest
    source: str
    sources: list[Address] = []


class Shelve(DeploymentMessage, frozen=True, tag=True):
    """The order to load these layers as a hot standby, which a later AssignStage takes without loading.

    Of the standbys on the shelf only `others` stay.
    """

    epoch: int
    spec: StageSpec
    manifest: Manifest
    source: str
    sources: list[Address] = []
    others: list[StageSpec] = []


class Shelved(DeploymentMessage, frozen=True, tag=True):
    """The answer to Shelve for these layers.

    If `ok` is false, `reason` says why. It is empty if the controller no longer asks for these layers.
    """

    epoch: int
    spec: StageSpec
    ok: bool
    reason: str = ""


class Tidy(DeploymentMessage, frozen=True, tag=True):
    """The order to keep only these layers of this manifest digest on the shelf. The node does not answer it."""

    epoch: int
    digest: str
    specs: list[StageSpec]


class Prepared(DeploymentMessage, frozen=True, tag=True):
    """The report that the files are here and match the manifest."""

    epoch: int


class Ready(DeploymentMessage, frozen=True, tag=True):
    """The report that the assigned process listens for its upstream on `port`.

    A coordinator takes callers on `client_port`. `kept` says that a stage still has the KV cache of the previous
    pipeline. `terms` and `wire` are what the process has really loaded. `unconstrained` is why the process cannot
    constrain answers to a schema; it is empty if it can or need not.
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


class Connect(DeploymentMessage, frozen=True, tag=True):
    """The order to complete the pipeline: open a link to `downstream`.

    `fresh` tells a coordinator which stages hold nothing. `after_error` tells it whether a stage's own error, or
    the end of a stage's process, broke the last pipeline. The requests computed at that moment may be the cause.
    """

    epoch: int
    role: str
    downstream: Address
    fresh: list[int] = []
    after_error: bool = False


class Connected(DeploymentMessage, frozen=True, tag=True):
    """The report that this stage's link downstream is open."""

    epoch: int


class PipelineClosed(DeploymentMessage, frozen=True, tag=True):
    """The report that a first frame went through all stages and came back."""

    epoch: int
    round_trip_ms: float


class Failed(DeploymentMessage, frozen=True, tag=True):
    """The report that the process with this role cannot go on in this epoch.

    `peer_id` is the machine that the process could not reach. With the cause "invalid", that machine sent a frame
    that does not belong in this epoch's pipeline.
    """

    epoch: int
    role: str
    reason: str
    peer_id: str = ""
    cause: Cause = "error"


class Dismiss(DeploymentMessage, frozen=True, tag=True):
    """The order to leave every pipeline older than `epoch`. `role` limits it to one process of the machine.

    Loaded layers stay.
    """

    epoch: int
    role: str = ""


class Unload(DeploymentMessage, frozen=True, tag=True):
    """The order to end the deployment's processes on the machine and free their memory.

    A machine to which `epoch` or a later one was assigned ignores it. ANY_EPOCH ends them in any case.
    """

    epoch: int
