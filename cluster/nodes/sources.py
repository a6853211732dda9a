"""The choice of nodes to fetch model files from: a pure function of who has files and how far away they are."""

import ipaddress
from collections.abc import Callable, Sequence

from cluster import wire
from cluster.trust.identity import NodeId

SOURCES_MAX = 8

# Assumed delays until a link has been measured: on one machine, in one network, and beyond it.
_SAME_MACHINE_S = 0.00005
_SAME_NETWORK_S = 0.0005
_ELSEWHERE_S = 0.02
_NEAR_S = 0.002
# The usual network sizes of homes and offices. Machines of a larger network only count as farther away.
_PREFIX_BITS = {4: 24, 6: 64}

Measured = Callable[[NodeId, NodeId], float | None]
"""Seconds from one node to another, or None if unmeasured."""


def nearest(
    asker: wire.Address, holders: Sequence[wire.Address], controller_host: str, measured: Measured
) -> list[wire.Address]:
    """Return the nodes that may have files, nearest first, without those much farther than the controller.

    The controller has everything and always comes last. A node as near as the controller should spare it the work.
    """
    controller_s = assumed_s(asker.host, controller_host)
    delays = [(_delay_s(asker, holder, measured), holder) for holder in holders if holder.node_id != asker.node_id]
    # A measured delay never equals an assumed one, so a node in the requesting node's network is near enough.
    near = [pair for pair in delays if pair[0] <= max(controller_s, _NEAR_S)]
    return [holder for _, holder in sorted(near, key=lambda pair: (pair[0], pair[1].node_id))[:SOURCES_MAX]]


def assumed_s(one: str, other: str) -> float:
    """Return the assumed seconds from one address to another, judged by the addresses alone."""
    if one == other:
        return _SAME_MACHINE_S
    try:
        address, other_address = (ipaddress.ip_address(host.partition("%")[0]) for host in (one, other))
    except ValueError:
        return _ELSEWHERE_S
    if address.is_loopback and other_address.is_loopback:
        return _SAME_MACHINE_S
    if address.version != other_address.version:
        return _ELSEWHERE_S
    network = ipaddress.ip_network(f"{address}/{_PREFIX_BITS[address.version]}", strict=False)
    return _SAME_NETWORK_S if other_address in network else _ELSEWHERE_S


def _delay_s(asker: wire.Address, holder: wire.Address, measured: Measured) -> float:
    delay_s = measured(holder.node_id, asker.node_id)
    return assumed_s(asker.host, holder.host) if delay_s is None else delay_s
