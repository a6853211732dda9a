"""The options of a node, which its agent gets once, at its start."""

from msgspec import Struct

from cluster.trust.addresses import Target

# The exit status of a node whose machine was removed from the cluster. It must not be started again.
REMOVED_STATUS = 3


class NodeOptions(Struct, frozen=True, kw_only=True):
    """The options of one node. `token` is needed once; afterwards the certificate in `folder` identifies the node.

    Without a `controller` the node tries the last known address and, with `discovery`, mDNS. `share` is this
    node's part of the machine's memory if several nodes run on one. `shares_files` says that the controller's
    paths are valid here, so that no files need be fetched. Saved KV blocks take at most `kv_disk_gb`; 0 saves none.
    """

    name: str
    folder: str
    controller: Target | None = None
    discovery: bool = False
    token: str = ""
    threads: int = 1
    share: float = 1.0
    kv_disk_gb: float = 0.0
    shares_files: bool = False
    log_style: str = "json:info"
