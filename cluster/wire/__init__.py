"""Every message between machines and processes of a cluster, one file for each pair of speakers.

Modules:
    addresses  The addresses at which processes of a cluster listen
    calls      Messages between a gateway and a coordinator or an embedder
    codec      The one frame codec that all messages travel in
    enrolment  Messages for joining, on the controller's port, before the new machine has a certificate
    files      Messages that transfer model files: from the controller to a node, and from one node to another
    orders     The controller's orders to nodes, and their answers
    presence   Messages about presence: between the controller and a node's agent, and between an agent and its
               children
    steps      Messages of the pipeline's links, from the coordinator through all stages and back
"""

from cluster.wire.addresses import Address
from cluster.wire.calls import Cancel, Embed, Embedded, Events, Generate, Rejected
from cluster.wire.codec import (
    HEADER,
    MESSAGE_BYTES_MAX,
    ORDER_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    PROTOCOL_VERSION,
    Message,
    decode,
    encode,
    read_header,
)
from cluster.wire.enrolment import AskAuthority, Authority, Enrol, Enrolled, Refused
from cluster.wire.files import AskHeld, Fetch, Held, NoPart, Part
from cluster.wire.orders import (
    ANY_EPOCH,
    NO_TERMS,
    SEAL_KEY_BYTES,
    AssignCoordinator,
    AssignEmbedder,
    AssignStage,
    Cause,
    Connect,
    Connected,
    DeploymentMessage,
    Dismiss,
    Failed,
    PipelineClosed,
    Prepare,
    Prepared,
    Ready,
    Shelve,
    Shelved,
    Terms,
    Tidy,
    Unload,
)
from cluster.wire.presence import (
    DEPLOYMENTS_MAX,
    LINK_PEERS_MAX,
    Heartbeat,
    Hello,
    LinkReport,
    MeasuredLink,
    MeasureLinks,
    ProcessReport,
    Removed,
    Renew,
    Renewed,
    Tick,
    Vitals,
    Welcome,
)
from cluster.wire.steps import SAVED_NAME_BYTES, Move, OpenSlot, PipelineHello, Restore, Sampled, Save, Step

__all__ = [
    "ANY_EPOCH",
    "DEPLOYMENTS_MAX",
    "HEADER",
    "LINK_PEERS_MAX",
    "MESSAGE_BYTES_MAX",
    "NO_TERMS",
    "ORDER_BYTES_MAX",
    "PAYLOAD_BYTES_MAX",
    "PROTOCOL_VERSION",
    "SAVED_NAME_BYTES",
    "SEAL_KEY_BYTES",
    "Address",
    "AskAuthority",
    "AskHeld",
    "AssignCoordinator",
    "AssignEmbedder",
    "AssignStage",
    "Authority",
    "Cancel",
    "Cause",
    "Connect",
    "Connected",
    "DeploymentMessage",
    "Dismiss",
    "Embed",
    "Embedded",
    "Enrol",
    "Enrolled",
    "Events",
    "Failed",
    "Fetch",
    "Generate",
    "Heartbeat",
    "Held",
    "Hello",
    "LinkReport",
    "MeasureLinks",
    "MeasuredLink",
    "Message",
    "Move",
    "NoPart",
    "OpenSlot",
    "Part",
    "PipelineClosed",
    "PipelineHello",
    "Prepare",
    "Prepared",
    "ProcessReport",
    "Ready",
    "Refused",
    "Rejected",
    "Removed",
    "Renew",
    "Renewed",
    "Restore",
    "Sampled",
    "Save",
    "Shelve",
    "Shelved",
    "Step",
    "Terms",
    "Tick",
    "Tidy",
    "Unload",
    "Vitals",
    "Welcome",
    "decode",
    "encode",
    "read_header",
]
