"""The addresses at which processes of a cluster listen."""

from msgspec import Struct

from cluster.trust.identity import NodeId


class Address(Struct, frozen=True):
    """The address where a node's process listens for links, and the node whose certificate must answer there."""

    node_id: NodeId
    host: str
    port: int
