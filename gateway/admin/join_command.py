"""The command for a joining machine, with the cluster's address."""

import socket

from cluster.nodes.probe import own_address
from cluster.trust.addresses import Target

_ANY = ("0.0.0.0", "::")  # noqa: S104 - recognized, not bound


def join_command(cluster: Target, token: str) -> str:
    """Return the command for a machine in the same network."""
    return f"millrace join {seen_from_outside(cluster)} --token {token}"


def seen_from_outside(cluster: Target) -> Target:
    """Return an address that machines can reach, also if the gateway listens on every address."""
    if cluster.host not in _ANY:
        return cluster
    return Target(own_address(ipv6=cluster.host == _ANY[1]) or socket.gethostname(), cluster.port)
