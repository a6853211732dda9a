"""What two programs of a cluster must agree on before they work together; a mismatch is named with both values."""

from collections.abc import Mapping
from importlib.metadata import version

from cluster import wire
from cluster.errors import PeerRejected
from cluster.machine import POINTS_MAX, TEXT_CHARACTERS_MAX, Machine

PROGRAM = version("millrace")

# Beyond these a description of a machine is a lie or a mistake.
MEMORY_BYTES_MAX = 2**47
CORES_MAX = 2**14
NAME_CHARACTERS_MAX = 200
SPEEDS_MAX = 16


def check_hello(hello: wire.Hello) -> None:
    """Whether this node may take part. Raises PeerRejected."""
    if not 0 < len(hello.name) <= NAME_CHARACTERS_MAX:
        raise PeerRejected(f"a node's name has 1 to {NAME_CHARACTERS_MAX} characters, not {len(hello.name)}")
    _check_texts(hello.name, {"program": hello.program, "torch": hello.torch})
    if hello.program != PROGRAM:
        theirs = f"Millrace {hello.program}" if hello.program else "an older Millrace"
        raise PeerRejected(f"{hello.name} runs {theirs}, this cluster Millrace {PROGRAM}: install the same")
    if hello.protocol != wire.PROTOCOL_VERSION:
        ours = wire.PROTOCOL_VERSION
        raise PeerRejected(f"{hello.name} speaks protocol {hello.protocol}, this cluster {ours}: install the same")
    check_machine(hello.name, hello.machine)


def check_machine(name: str, machine: Machine) -> None:
    """Raises PeerRejected for amounts that no machine has, and for longer descriptions than one needs."""
    device, speeds = machine.device, machine.pace.speeds
    texts = {"system": machine.system, "architecture": machine.architecture}
    texts |= {"device kind": device.kind, "device name": device.name}
    _check_texts(name, texts)
    if len(speeds) > SPEEDS_MAX or any(max(len(s.rows), len(s.seconds)) > POINTS_MAX for s in speeds.values()):
        raise PeerRejected(f"{name} sends more than {SPEEDS_MAX} speeds or {POINTS_MAX} points of one")
    for precision, speed in speeds.items():
        _check_texts(name, {"precision": precision, "reason": speed.reason})
    if not 0 < machine.memory_total_bytes <= MEMORY_BYTES_MAX:
        raise PeerRejected(f"{name} claims a memory of {machine.memory_total_bytes} bytes")
    if not 0 < machine.cores <= CORES_MAX:
        raise PeerRejected(f"{name} claims {machine.cores} cores")
    if not 0 <= machine.device.memory_bytes <= MEMORY_BYTES_MAX:
        raise PeerRejected(f"{name} claims a device with {machine.device.memory_bytes} bytes")
    most_bytes = max(machine.memory_total_bytes, machine.device.memory_bytes)
    check_memory(name, machine.memory_usable_bytes, most_bytes)


def _check_texts(name: str, texts: Mapping[str, str]) -> None:
    """Raises PeerRejected for one that is too long to be kept and shown."""
    for what, text in texts.items():
        if len(text) > TEXT_CHARACTERS_MAX:
            raise PeerRejected(f"{name} sends a {what} of {len(text)} characters, {TEXT_CHARACTERS_MAX} at most")


def check_memory(name: str, usable_bytes: int, most_bytes: int) -> None:
    """Raises PeerRejected when a machine claims to have more to give than it has."""
    if not 0 <= usable_bytes <= most_bytes:
        raise PeerRejected(f"{name} claims {usable_bytes} usable bytes of {most_bytes}")


def check_terms(ours: wire.Terms, theirs: wire.Terms) -> None:
    """Whether both ends of a link compute the same model in the same way. Raises PeerRejected."""
    if theirs.digest != ours.digest:
        raise PeerRejected(f"upstream runs the model {theirs.digest[:12]}, here is {ours.digest[:12]}")
    if theirs.precision != ours.precision:
        raise PeerRejected(f"upstream computes in {theirs.precision}, here it is {ours.precision}")


def check_ready(name: str, planned: wire.Terms, planned_wire: str, ready: wire.Ready) -> None:
    """Whether a stage has loaded what it was told to. Raises PeerRejected."""
    for what, ours, theirs in (
        ("model", planned.digest[:12], ready.terms.digest[:12]),
        ("precision", planned.precision, ready.terms.precision),
        ("rows on links", planned_wire, ready.wire),
    ):
        if ours != theirs:
            raise PeerRejected(f"{name} has loaded {what} {theirs or 'unnamed'}, planned is {ours or 'unnamed'}")
