"""The cluster's picture: what it says of machines and links, and that everything has its place."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.plans.network import Link
from gateway.console.figures.layout import TALL, WIDE, Box, LayoutForm, place
from gateway.console.figures.machines import link_matrix
from gateway.console.figures.picture import Picture, PicturePart, Tank, Wire, draw, rate
from gateway.console.renderer import render
from tests.console.topologies import CARD, GIB, everybody, household, member, node_id, topology, without_prediction
from tests.examples import examples


def test_a_household_with_a_radio_and_a_spare() -> None:
    known = household()
    assert known.plan
    assert known.plan.predicted
    picture = draw(known, CARD)
    assert [tank.name for tank in picture.pipeline] == [stage.member.name for stage in known.plan.stages]
    seconds = known.plan.predicted.stage_s
    paces = [at for at, tank in enumerate(picture.pipeline) if tank.is_pace]
    assert paces == [seconds.index(max(seconds))]
    assert [tank.name for tank in picture.beside] == ["a-laptop-with-a-long-name.local"]
    assert "no room for a layer" in picture.beside[0].reason
    marks = {(wire.sender, wire.receiver): wire.mark for wire in picture.wires}
    assert all(bool(mark) == ("ceres" in ends) for ends, mark in marks.items())
    assert picture.wires[-1].is_back
    for tank in picture.tanks:
        assert sum(part.size_bytes for part in tank.parts) == tank.total_bytes
        # Free memory is told in steps, so that a picture does not change with every heartbeat.
        assert 0 <= tank.total_bytes - tank.bytes_of("other") - tank.held_bytes - tank.bytes_of("free") < GIB


def test_what_is_not_known_is_not_claimed() -> None:
    alone = topology([member(0, "alone", 16, kind="cuda")])
    picture = draw(alone, CARD)
    assert not picture.wires
    assert not picture.pipeline[0].is_pace
    unmeasured = draw(topology([member(0, "a", 8), member(1, "b", 8)], stages_min=2), None)
    assert {wire.delay for wire in unmeasured.wires} == {"not measured"}
    assert not any(wire.mark or wire.rate for wire in unmeasured.wires)
    assert {part.kind for part in unmeasured.pipeline[0].parts} == {"weights", "free", "other"}
    after_a_stand_in = draw(without_prediction(household()), CARD)
    assert not any(tank.is_pace for tank in after_a_stand_in.pipeline)
    assert after_a_stand_in.pipeline[0].stage_ms is None
    without_ring = draw(replace(household(), plan=None, standbys=(), coordinator=None, status="planning"), CARD)
    assert not without_ring.pipeline
    assert {tank.role for tank in without_ring.beside} == {"waiting"}


def test_a_link_is_slow_by_its_delay_or_its_rate() -> None:
    links = everybody(3) | {
        (0, 1): Link(delay_s=0.01, bytes_per_s=117e6),
        (1, 2): Link(delay_s=1e-4, bytes_per_s=1e6),
    }
    rows = link_matrix(topology([member(at, f"m{at}", 16) for at in range(3)], links=links))
    slow = {(a, b) for a, row in enumerate(rows) for b, cell in enumerate(row.cells) if cell.is_slow}
    assert slow == {(0, 1), (1, 2)}
    assert rows[1].cells[2].rate == "8 Mbit/s"
    assert rate(5e12) == "> 100 Gbit/s", "within one machine"
    assert rate(12.4e9) == "99.2 Gbit/s"


def tank(at: int, sizes: list[int], stage: int | None) -> Tank:
    weights, kv, free, other = sizes
    parts = (
        PicturePart("weights", weights),
        PicturePart("kv", kv),
        PicturePart("free", free),
        PicturePart("other", other),
    )
    return Tank(node_id(at), f"m{at}", "CPU", stage, "", parts, sum(sizes), sum(sizes), "")


@settings(deadline=None, max_examples=examples(15, 40))
@given(
    st.integers(0, 12),
    st.integers(0, 12),
    st.lists(st.integers(1, 2**45), min_size=4, max_size=4),
    st.sampled_from((WIDE, TALL)),
)
def test_everything_is_inside_and_nothing_overlaps(
    stages: int, spares: int, sizes: list[int], form: LayoutForm
) -> None:
    pipeline = tuple(tank(at, sizes, at) for at in range(stages))
    beside = tuple(tank(100 + at, sizes, None) for at in range(spares))
    wires = tuple(
        Wire(f"m{at}", f"m{(at + 1) % stages}", None, None, "", is_back=at == stages - 1)
        for at in range(stages if stages > 1 else 0)
    )
    drawing = place(Picture("ready", "", "m", pipeline, wires, beside), form)
    boxes = [*drawing.pipeline, *drawing.beside]
    assert len(boxes) == stages + spares
    assert len(drawing.lines) == len(wires)
    for box in boxes:
        assert 0 <= box.x <= box.x + box.width <= drawing.width
        assert 0 <= box.y <= box.y + box.height <= drawing.height
        assert abs(sum(level.height for level in box.levels) - (box.height - 6)) < 0.1
        assert all(level.height > 1 for level in box.levels)
    assert not any(_overlap(a, b) for at, a in enumerate(boxes) for b in boxes[:at])


def _overlap(a: Box, b: Box) -> bool:
    return a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height


def test_names_are_text_and_not_markup() -> None:
    from gateway.console.figures.layout import sketch

    evil = topology([member(0, '<script>alert("x")</script>', 16), member(1, "b", 16)], stages_min=2)
    drawn = render("cluster/picture.html", cluster=sketch(evil, CARD))
    assert "<script" not in drawn
    assert "&lt;script&gt;" in drawn
    assert drawn.count("<svg") >= 2
