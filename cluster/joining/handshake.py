"""The facts on which two programs of a cluster must agree. A mismatch is reported with both values."""

from collections.abc import Mapping
from importlib.metadata import version

from cluster import wire
from cluster.errors import PeerRejected
from cluster.machine import POINTS_MAX, TEXT_CHARACTERS_MAX, Machine

PROGRAM = version("millrace")

# A description of a machine beyond these limits is forged or a mistake.
MEMORY_BYTES_MAX = 2**47
CORES_MAX = 2**14
NAME_CHARACTERS_MAX = 200
SPEEDS_MAX = 16


def check_hello(hello: wire.Hello) -> None:
    """Raise PeerRejected if this node may not take part."""
    if not 0 < len(hello.name) <= NAME_CHARACTERS_MAX:
        raise PeerRejected(f"a node's name has 1 to {NAME_CHARACTERS_MAX} characters, not {len(hello.name)}")
    _check_texts(hello.name, {"program": hello.program, "torch": hello.torch})
    if hello.program != PROGRAM:
        program = f"Millrace {hello.program}" if hello.program else "an older Millrace"
        raise PeerRejected(
            f"{hello.name} runs {program}, this cluster runs Millrace {PROGRAM}. Install the same version."
        )
    if hello.protocol != wire.PROTOCOL_VERSION:
        protocol = wire.PROTOCOL_VERSION
        raise PeerRejected(
            f"{hello.name} speaks protocol {hello.protocol}, this cluster {protocol}. Install the same version."
        )
    check_machine(hello.name, hello.machine)


def check_machine(name: str, machine: Machine) -> None:
    """Raise PeerRejected for impossible amounts and for descriptions that are too long."""
    device, speeds = machine.device, machine.pace.speeds
    texts = {"system": machine.system, "architecture": machine.architecture}
    texts |= {"device kind": device.kind, "device name": device.name}
    _check_texts(name, texts)
    if len(speeds) > SPEEDS_MAX or any(max(len(s.rows), len(s.seconds)) > POINTS_MAX for s in speeds.values()):
        raise PeerRejected(f"{name} sent more than {SPEEDS_MAX} speeds or more than {POINTS_MAX} points of one")
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
    """Raise PeerRejected for a text that is too long to store and show."""
    for label, text in texts.items():
        if len(text) > TEXT_CHARACTERS_MAX:
            raise PeerRejected(
                f"{name} sent a {label} of {len(text)} characters; {TEXT_CHARACTERS_MAX} are allowed"
            )


def check_memory(name: str, usable_bytes: int, most_bytes: int) -> None:
    """Raise PeerRejected if a machine claims more usable memory than it has."""
    if not 0 <= usable_bytes <= most_bytes:
        raise PeerRejected(f"{name} claims {usable_bytes} usable bytes of {most_bytes}")


def check_terms(expected: wire.Terms, actual: wire.Terms) -> None:
    """Raise PeerRejected if the ends of a link do not compute the same model in the same way."""
    if actual.digest != expected.digest:
        raise PeerRejected(f"upstream runs the model {actual.digest[:12]}, this stage runs {expected.digest[:12]}")
    if actual.precision != expected.precision:
        raise PeerRejected(f"upstream computes in {actual.precision}, this stage in {expected.precision}")


def check_ready(name: str, planned: wire.Terms, planned_wire: str, ready: wire.Ready) -> None:
    """Raise PeerRejected if a stage has not loaded what it was ordered to load."""
    for label, expected, actual in (
        ("model", planned.digest[:12], ready.terms.digest[:12]),
        ("precision", planned.precision, ready.terms.precision),
        ("rows on links", planned_wire, ready.wire),
    ):
        if expected != actual:
            raise PeerRejected(
                f"{name} has loaded {label} {actual or 'unnamed'}, but the plan says {expected or 'unnamed'}"
            )
