"""What is typed on a machine that is to join: the command with the address at which it finds the cluster."""

import socket

from cluster.nodes.probe import own_address
from cluster.trust.addresses import Target

_ANY = ("0.0.0.0", "::")  # noqa: S104 - recognised, not bound


def join_command(cluster: Target, token: str) -> str:
    """For a machine in this one's network."""
    return f"millrace join {seen_from_outside(cluster)} --token {token}"


def seen_from_outside(cluster: Target) -> Target:
    """A listener on every address is reached at one of them."""
    if cluster.host not in _ANY:
        return cluster
    return Target(own_address(ipv6=cluster.host == _ANY[1]) or socket.gethostname(), cluster.port)
