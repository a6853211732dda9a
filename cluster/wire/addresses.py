"""Where processes of a cluster listen."""

from msgspec import Struct

from cluster.trust.identity import NodeId


class Address(Struct, frozen=True):
    """Where a process of a node listens for links, and whose certificate must answer there."""

    node_id: NodeId
    host: str
    port: int
