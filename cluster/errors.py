"""What can go wrong in the cluster, one class per meaning.

ClusterError
├── ModelError
│   ├── ModelNotFound        no such folder or Hugging Face id
│   ├── ModelUnsupported     a family or feature that the decoder does not run
│   ├── ModelInvalid         damaged or contradictory files
│   ├── ModelDoesNotFit      the machines' memory is too small; says by how much
│   └── WeightsMismatch      a tensor or file is not the one that the manifest pins
├── LinkError
│   ├── PeerRejected         wrong certificate, role, token or protocol version
│   │   ├── WrongPeer        somebody else answers there; the right one may be elsewhere
│   │   ├── MachineRemoved   this machine, or the one at the other end, was put out of the cluster
│   │   └── OwnRemoval       the controller says that this machine was removed
│   ├── FrameInvalid         bytes that are no frame of ours, or a frame beyond its bound
│   └── LinkLost             the other end is gone
├── NodeFailed               one machine could not do its part of a rollout
├── PlanOutdated             what the plan was made for has changed: make another one
├── MachineUnknown           no machine has this name, or several have
├── NameTaken                another machine is called so, or known by an id that begins so
└── GenerationError          how a request can end; crosses the wire as (code, message, param)
    ├── RequestInvalid
    ├── ContextLengthExceeded
    ├── ClusterBusy
    ├── ClusterUnavailable
    └── StageLost            a ring was lost while it answered, and none went on with it
        ├── HeadLost         the connection to a head was lost; never crosses the wire
        └── EmbedderLost     the connection to an embedder was lost; never crosses the wire
"""

from typing import ClassVar


class ClusterError(Exception):
    """Root of everything that this package raises on purpose."""


class ModelError(ClusterError):
    pass


class ModelNotFound(ModelError):
    pass


class ModelUnsupported(ModelError):
    pass


class ModelInvalid(ModelError):
    pass


class ModelDoesNotFit(ModelError):
    def __init__(
        self,
        model: str,
        needed_bytes: int,
        usable_bytes: int,
        remedy: str = "add a machine, free memory, or choose a smaller model or precision",
    ) -> None:
        self.needed_bytes = needed_bytes
        self.usable_bytes = usable_bytes
        short_mib = -(-(needed_bytes - usable_bytes) // 2**20)
        super().__init__(
            f"{model} needs {needed_bytes / 2**30:.2f} GiB, the machines have {usable_bytes / 2**30:.2f} GiB "
            f"to give: {short_mib} MiB short. What would help: {remedy}."
        )


class WeightsMismatch(ModelError):
    def __init__(self, name: str, expected_sha256: str, found_sha256: str) -> None:
        self.name = name
        super().__init__(f"{name} has sha256 {found_sha256}, the manifest pins {expected_sha256}")


class NodeFailed(ClusterError):
    """`node_id` says so of itself, or, with `peer_ids`, that one of these others may be to blame."""

    def __init__(self, node_id: str, reason: str, peer_ids: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.node_id = node_id
        self.peer_ids = peer_ids


class PlanOutdated(ClusterError):
    pass


class MachineUnknown(ClusterError):
    pass


class NameTaken(ClusterError):
    pass


class LinkError(ClusterError):
    pass


class PeerRejected(LinkError):
    pass


class WrongPeer(PeerRejected):
    pass


class MachineRemoved(PeerRejected):
    def __init__(self, node_id: str) -> None:
        super().__init__(f"machine {node_id} was removed from this cluster; a new join token lets it in anew")


class OwnRemoval(PeerRejected):
    pass


class FrameInvalid(LinkError):
    pass


class LinkLost(LinkError):
    pass


class GenerationError(ClusterError):
    """A request ended without its answer. `param` names the request's field when one is to blame."""

    code: ClassVar[str] = "generation_failed"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class RequestInvalid(GenerationError):
    code = "invalid_value"


class ContextLengthExceeded(GenerationError):
    code = "context_length_exceeded"


class ClusterBusy(GenerationError):
    code = "cluster_busy"


class ClusterUnavailable(GenerationError):
    code = "cluster_unavailable"


class StageLost(GenerationError):
    code = "stage_lost"


class HeadLost(StageLost):
    pass


class EmbedderLost(StageLost):
    pass


GENERATION_ERRORS: dict[str, type[GenerationError]] = {
    kind.code: kind
    for kind in (
        GenerationError,
        RequestInvalid,
        ContextLengthExceeded,
        ClusterBusy,
        ClusterUnavailable,
        StageLost,
    )
}
