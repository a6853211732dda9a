"""From whom a node should fetch model files: a pure function of who has some and how far away they are."""

import ipaddress
from collections.abc import Callable, Sequence

from cluster import wire
from cluster.trust.identity import NodeId

SOURCES_MAX = 8

# Until a link has been measured: what is usual on one machine, in one network, and beyond it.
_SAME_MACHINE_S = 0.00005
_SAME_NETWORK_S = 0.0005
_ELSEWHERE_S = 0.02
_NEAR_S = 0.002
# Households and offices number their networks so; a larger one only counts as farther than it is.
_PREFIX_BITS = {4: 24, 6: 64}

Measured = Callable[[NodeId, NodeId], float | None]
"""Seconds from one node to another, None where nobody has measured them."""


def nearest(
    asker: wire.Address, holders: Sequence[wire.Address], controller_host: str, measured: Measured
) -> list[wire.Address]:
    """Those who may have files, the nearest first, but nobody much farther away than the controller.

    It has everything and comes last in any case; where somebody is as near, he is to spare it the work.
    """
    controller_s = assumed_s(asker.host, controller_host)
    delays = [(_delay_s(asker, holder, measured), holder) for holder in holders if holder.node_id != asker.node_id]
    # A measurement is never as round as an assumption: whoever is in one network with the asker is near enough.
    near = [pair for pair in delays if pair[0] <= max(controller_s, _NEAR_S)]
    return [holder for _, holder in sorted(near, key=lambda pair: (pair[0], pair[1].node_id))[:SOURCES_MAX]]


def assumed_s(one: str, other: str) -> float:
    """Seconds from one address to another, by their looks."""
    if one == other:
        return _SAME_MACHINE_S
    try:
        here, there = (ipaddress.ip_address(host.partition("%")[0]) for host in (one, other))
    except ValueError:
        return _ELSEWHERE_S
    if here.is_loopback and there.is_loopback:
        return _SAME_MACHINE_S
    if here.version != there.version:
        return _ELSEWHERE_S
    network = ipaddress.ip_network(f"{here}/{_PREFIX_BITS[here.version]}", strict=False)
    return _SAME_NETWORK_S if there in network else _ELSEWHERE_S


def _delay_s(asker: wire.Address, holder: wire.Address, measured: Measured) -> float:
    found = measured(holder.node_id, asker.node_id)
    return assumed_s(asker.host, holder.host) if found is None else found
