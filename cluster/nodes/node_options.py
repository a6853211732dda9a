"""How to run a node: what its agent is told once, when it starts."""

from msgspec import Struct

from cluster.trust.addresses import Target

# The exit status of a node whose machine was removed from the cluster: it is not to be started again.
REMOVED_STATUS = 3


class NodeOptions(Struct, frozen=True, kw_only=True):
    """`token` is needed once; afterwards the certificate in `folder` speaks for the node.

    Without a `controller` it is looked for where it was last and, with `discovery`, by mDNS. `share` is this
    node's part of the machine's memory when several nodes run on one. `shares_files` says that the controller's
    paths are valid here, so that nothing need be fetched.
    """

    name: str
    folder: str
    controller: Target | None = None
    discovery: bool = False
    token: str = ""
    threads: int = 1
    share: float = 1.0
    shares_files: bool = False
    log_style: str = "json:info"
