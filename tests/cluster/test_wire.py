"""Frames from any peer: invalid ones are refused by name, before memory is allocated for them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import wire
from cluster.errors import FrameInvalid
from cluster.generation import SampledToken, Sampling
from cluster.models.stage_spec import StageSpec
from cluster.trust.identity import NodeId

SPEC = StageSpec(
    index=0,
    stages=2,
    first_layer=0,
    end_layer=3,
    precision="int8",
    context_tokens=512,
    kv_blocks=64,
    slots=4,
)


def step(**changes: object) -> wire.Step:
    fields: dict[str, object] = {
        "epoch": 3,
        "batch": 9,
        "slots": [0, 5],
        "starts": [0, 17],
        "counts": [4, 1],
        "wanted": [0, 1],
        "drafts": [],
        "opened": [wire.OpenSlot(0, Sampling(temperature=0.5, logit_bias={3: -1.0}), [1, 2], 2)],
        "moves": [wire.Move(7), wire.Move(1, 0, 128)],
        "replay": [1],
        "census": [(0, 3)],
        "is_reset": True,
        "spent_ns": [12],
        "saves": [wire.Save(3, [b"n" * 16])],
        "restores": [wire.Restore(2, 1, 4, [b"m" * 16])],
        "held": [b"h" * 16],
    }
    return wire.Step(**fields | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "message",
    [
        step(),
        wire.Sampled(3, 9, [SampledToken(5, -0.25)], [1], [1, 2], [3], [b"h" * 16]),
        wire.Connect(1, "stage", wire.Address(NodeId("n"), "::1", 5)),
        wire.Failed(1, "coordinator", "for a reason"),
        wire.Shelved(3, SPEC, ok=False, reason="no room"),
        wire.Tidy(3, "0" * 64, [SPEC]),
    ],
)
def test_messages_are_decoded_as_they_were_encoded(message: wire.Message) -> None:
    frame = wire.encode(message, payload_bytes=11)
    message_bytes, payload_bytes = wire.read_header(frame[: wire.HEADER.size])
    assert payload_bytes == 11
    assert len(frame) == wire.HEADER.size + message_bytes
    assert wire.decode(frame[wire.HEADER.size :]) == message


@given(st.binary(min_size=wire.HEADER.size, max_size=wire.HEADER.size))
def test_any_other_header_is_refused(header: bytes) -> None:
    if not header.startswith(b"MRCW"):
        with pytest.raises(FrameInvalid):
            wire.read_header(header)


@given(st.binary(max_size=300))
def test_any_other_message_is_refused(body: bytes) -> None:
    try:
        wire.decode(body)
    except FrameInvalid:
        return
    raise AssertionError("random bytes should not make a message")


@given(st.data())
def test_a_damaged_message_is_refused_or_read_but_never_crashes(data: st.DataObject) -> None:
    frame = bytearray(wire.encode(step())[wire.HEADER.size :])
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FrameInvalid):
        wire.decode(frame)


def test_bounds_and_versions_are_checked_first() -> None:
    frame = wire.encode(wire.Tick(), payload_bytes=wire.PAYLOAD_BYTES_MAX + 1)
    with pytest.raises(FrameInvalid, match="larger than"):
        wire.read_header(frame[: wire.HEADER.size])
    with pytest.raises(FrameInvalid, match="larger than"):
        wire.read_header(wire.HEADER.pack(b"MRCW", wire.PROTOCOL_VERSION, 0, 2**32 - 1, 0))
    with pytest.raises(FrameInvalid, match=r"protocol 9, this program speaks"):
        wire.read_header(wire.HEADER.pack(b"MRCW", 9, 0, 1, 0))


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(FrameInvalid):
        wire.decode(b"\x91" * 100_000 + b"\xc0")
