"""The errors of the cluster, one class per meaning.

ClusterError
├── ModelError
│   ├── ModelNotFound        no such folder or Hugging Face id
│   ├── ModelUnsupported     a family or feature that the decoder does not run
│   ├── ModelInvalid         damaged or contradictory files
│   ├── ModelDoesNotFit      the machines' memory is too small; says by how much
│   └── WeightsMismatch      a tensor or file differs from the one that the manifest pins
├── LinkError
│   ├── PeerRejected         wrong certificate, role, token or protocol version
│   │   ├── WrongPeer        another process answers there; the right one may be elsewhere
│   │   ├── MachineRemoved   this machine, or the one at the other end, was removed from the cluster
│   │   └── OwnRemoval       the controller says that this machine was removed
│   ├── FrameInvalid         bytes that are not a valid frame, or a frame beyond its limit
│   └── LinkLost             the connection to the other end was lost
├── NodeFailed               one machine could not do its part of a rollout
├── PlanOutdated             the facts behind a plan have changed: a new plan is needed
├── MachineUnknown           no machine has this name, or several have
├── NameTaken                another machine or model has this name, or an id begins with it
└── GenerationError          the end of a request; crosses the wire as (code, message, param)
    ├── RequestInvalid
    ├── ContextLengthExceeded
    ├── ClusterBusy
    ├── ClusterUnavailable
    └── StageLost            the pipeline was lost during an answer, and no other one could continue
        └── ProcessLost      the connection to a coordinator or an embedder was lost; never crosses the wire
"""

from typing import ClassVar


class ClusterError(Exception):
    """Root of all errors that this package raises deliberately."""


class ModelError(ClusterError):
    """A model cannot be used."""


class ModelNotFound(ModelError):
    """There is no such folder or Hugging Face id."""


class ModelUnsupported(ModelError):
    """The decoder does not support this model family or feature."""


class ModelInvalid(ModelError):
    """The model's files are damaged or contradictory."""


class ModelDoesNotFit(ModelError):
    """The machines' memory is too small. `needed_bytes` and `usable_bytes` say by how much."""

    def __init__(
        self,
        model: str,
        needed_bytes: int,
        usable_bytes: int,
        remedy: str = "add a machine, free memory, or choose a smaller model or precision",
        *,
        beside: str = "",
    ) -> None:
        """`beside` names the deployments that take the rest of the memory."""
        self.model = model
        self.remedy = remedy
        self.needed_bytes = needed_bytes
        self.usable_bytes = usable_bytes
        short_mib = -(-(needed_bytes - usable_bytes) // 2**20)
        super().__init__(
            f"{model} needs {needed_bytes / 2**30:.2f} GiB, but the machines have {usable_bytes / 2**30:.2f} GiB "
            f"usable{f' beside {beside}' if beside else ''}: {short_mib} MiB short. To make it fit, {remedy}."
        )


class WeightsMismatch(ModelError):
    """A tensor or file differs from the one that the manifest pins."""

    def __init__(self, name: str, expected_sha256: str, found_sha256: str) -> None:
        self.name = name
        super().__init__(f"{name} has sha256 {found_sha256}, the manifest pins {expected_sha256}")


class NodeFailed(ClusterError):
    """Node `node_id` failed. With `peer_ids`, one of those machines may be to blame instead."""

    def __init__(self, node_id: str, reason: str, peer_ids: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.node_id = node_id
        self.peer_ids = peer_ids


class PlanOutdated(ClusterError):
    """The facts behind a plan have changed, so a new plan is needed."""


class MachineUnknown(ClusterError):
    """No machine has this name, or several have it."""


class NameTaken(ClusterError):
    """Another machine or model has this name, or an id begins with it."""


class LinkError(ClusterError):
    """A connection between machines failed."""


class PeerRejected(LinkError):
    """A peer has the wrong certificate, role, token or protocol version."""


class WrongPeer(PeerRejected):
    """Another process answers there; the right one may be elsewhere."""


class MachineRemoved(PeerRejected):
    """This machine, or the one at the other end, was removed from the cluster."""

    def __init__(self, node_id: str) -> None:
        super().__init__(f"machine {node_id} was removed from this cluster. Join it again with a new join token.")


class OwnRemoval(PeerRejected):
    """The controller says that this machine was removed."""


class FrameInvalid(LinkError):
    """Bytes are not a valid frame, or a frame exceeds its limit."""


class LinkLost(LinkError):
    """The connection to the other end was lost."""


class GenerationError(ClusterError):
    """A request ended without its answer. `param` names the request's field if one is to blame."""

    code: ClassVar[str] = "generation_failed"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class RequestInvalid(GenerationError):
    """A field of the request is not valid."""

    code = "invalid_value"


class ContextLengthExceeded(GenerationError):
    """The prompt and the answer exceed the context length."""

    code = "context_length_exceeded"


class ClusterBusy(GenerationError):
    """The cluster has too many requests now."""

    code = "cluster_busy"


class ClusterUnavailable(GenerationError):
    """No working pipeline or coordinator can take the request."""

    code = "cluster_unavailable"


class StageLost(GenerationError):
    """The pipeline was lost during an answer, and no other one could continue."""

    code = "stage_lost"


class ProcessLost(StageLost):
    """The connection to a coordinator or an embedder was lost. Never crosses the wire."""


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
