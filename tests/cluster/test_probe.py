"""A machine's own report: memory within its limits, measured links, and warnings with remedies."""

import asyncio
from pathlib import Path

import pytest
import torch
from cryptography import x509

from cluster import wire
from cluster.control.links import REFRESH_S, SETTLE_S, LinkSurvey
from cluster.errors import LinkLost, PeerRejected
from cluster.machine import Condition, Device, Machine, Pace, Speed
from cluster.nodes.condition import read_condition
from cluster.nodes.link_probe import LinkProbe, measure_link
from cluster.nodes.memory_limits import memory_limit
from cluster.nodes.pace_probe import probe_pace
from cluster.plans.machine_warnings import machine_warnings
from cluster.plans.network import ASSUMED, Link
from cluster.plans.plan import Member
from cluster.trust.authority import Authority
from cluster.trust.identity import CERTIFICATE_FILE, Identity, NodeId
from tests.clusters import PATIENCE_S

GIB = 2**30
ONE, TWO, THREE = (NodeId(f"{number:032x}") for number in (1, 2, 3))


def machine(condition: Condition | None = None, free_gib: int = 8, pace: Pace | None = None) -> Machine:
    return Machine(
        system="Linux",
        architecture="x86_64",
        cores=4,
        memory_total_bytes=16 * GIB,
        memory_usable_bytes=free_gib * GIB,
        device=Device("cpu", "cpu", free_gib * GIB),
        condition=condition or Condition(),
        pace=pace or Pace(),
    )


def group(folder: Path, limit: str, held: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{held}\n")
    (folder / "memory.stat").write_text(f"anon 1\nactive_file {cached}\ninactive_file 0\n")


def test_a_container_has_as_much_memory_as_its_tightest_group(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("0::/outer/inner\n")
    group(tmp_path / "fs" / "outer", str(4 * GIB), 3 * GIB, GIB)
    group(tmp_path / "fs" / "outer" / "inner", "max", GIB, 0)
    limit = memory_limit(tmp_path / "fs", membership)
    assert limit
    assert limit.free_bytes == 2 * GIB, "cached files count as free"


def test_limits_of_the_older_kind_count_and_no_limit_is_none(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("4:cpuset,memory:/docker/x\n0::/\n")
    folder = tmp_path / "fs" / "memory" / "docker" / "x"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(str(2**63 - 4096))
    (folder / "memory.usage_in_bytes").write_text("4096")
    assert memory_limit(tmp_path / "fs", membership) is None
    (folder / "memory.limit_in_bytes").write_text(str(GIB))
    limit = memory_limit(tmp_path / "fs", membership)
    assert limit
    assert limit.limit_bytes == GIB


def test_each_warning_names_its_remedy() -> None:
    healthy = machine(Condition(on_battery=False, on_wifi=False, is_throttled=False))
    cable = Link(delay_s=0.0002, jitter_s=0.00001, bytes_per_s=1e8)
    assert machine_warnings(healthy, [cable, ASSUMED], clock_skew_s=0.2) == ()
    broken = Pace(speeds={"int8": Speed(is_usable=False, reason="sums overflow")})
    ill = machine(Condition(on_battery=True, on_wifi=True, is_throttled=True), free_gib=1, pace=broken)
    tunnel = Link(delay_s=0.001, bytes_per_s=1e8, mtu_bytes=1280)
    found = machine_warnings(ill, [tunnel], clock_skew_s=-90)
    assert [warning.cause for warning in found] == ["battery", "wifi", "heat", "clock", "mtu", "memory", "kernels"]
    assert all(warning.remedy for warning in found)
    assert "90 s behind" in found[3].what
    shaky = Link(delay_s=0.002, jitter_s=0.008, bytes_per_s=1e8)
    assert [warning.cause for warning in machine_warnings(healthy, [shaky])] == ["jitter"]


def test_a_processor_reports_its_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sensor:
        def __init__(self, current: float, high: float | None) -> None:
            self.current, self.high = current, high

    sensors = {"nvme": [Sensor(80, 79)], "coretemp": [Sensor(55, 90), Sensor(61.5, None)]}
    monkeypatch.setattr("psutil.sensors_temperatures", lambda: sensors, raising=False)
    found = read_condition()
    assert (found.temperature_c, found.is_throttled) == (61.5, True)
    sensors.clear()
    assert (read_condition().temperature_c, read_condition().is_throttled) == (None, None)


@pytest.mark.anyio
async def test_two_nodes_measure_the_link_between_them(tmp_path: Path) -> None:
    authority = Authority.open(tmp_path / "authority")
    here = authority.issue_identity(tmp_path / "here", "node", "here")
    there = authority.issue_identity(tmp_path / "there", "node", "there")
    echo, asker = LinkProbe(there), LinkProbe(here)
    echo.open("127.0.0.1")
    asker.open("127.0.0.1")
    address = wire.Address(node_id_of(there), "127.0.0.1", echo.report().port)
    reports: asyncio.Queue[wire.Message] = asyncio.Queue()
    try:
        nobody = wire.Address(address.node_id, "127.0.0.1", 1)
        asker.begin(wire.MeasureLinks([address, nobody]), reports.put)
        report = await asyncio.wait_for(reports.get(), PATIENCE_S)
    finally:
        echo.close()
        asker.close()
    assert isinstance(report, wire.LinkReport)
    measured, failed = report.links
    assert measured.link
    assert measured.link.delay_s > 0
    assert measured.link.bytes_per_s > 0
    assert failed.link is None
    assert "cannot reach" in failed.reason


def node_id_of(identity: Identity) -> NodeId:
    """Return the machine that its certificate names."""
    certificate = x509.load_pem_x509_certificate((identity.folder / CERTIFICATE_FILE).read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    return NodeId(uri.rpartition(":")[2])


def test_an_unexpected_machine_is_not_measured(tmp_path: Path) -> None:
    authority = Authority.open(tmp_path / "authority")
    echo = LinkProbe(authority.issue_identity(tmp_path / "there", "node", "there"))
    here = authority.issue_identity(tmp_path / "here", "node", "here")
    echo.open("127.0.0.1")
    port = echo.report().port
    try:
        with pytest.raises(PeerRejected, match="not the expected machine"):
            measure_link(wire.Address(ONE, "127.0.0.1", port), here)
    finally:
        echo.close()
    with pytest.raises(LinkLost):
        measure_link(wire.Address(ONE, "127.0.0.1", port), here)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def report(*links: tuple[NodeId, Link | None]) -> wire.LinkReport:
    return wire.LinkReport(7000, [wire.MeasuredLink(node_id, link) for node_id, link in links])


def test_the_survey_has_every_link_measured_once_and_one_machine_at_a_time() -> None:
    clock, asked = Clock(), []
    survey = LinkSurvey(clock)
    for node_id in (ONE, TWO, THREE):
        survey.take_report(node_id, "10.0.0.1", report())
    assert not survey.due(), "new machines settle first"
    clock.now_s += SETTLE_S
    figures = Link(delay_s=0.001, bytes_per_s=1e8)
    while orders := survey.due():
        ((node_id, order),) = orders
        assert not survey.due()
        asked += [(node_id, peer.node_id) for peer in order.peers]
        survey.take_report(node_id, "10.0.0.1", report(*((peer.node_id, figures) for peer in order.peers)))
    assert sorted(asked) == sorted((a, b) for a in (ONE, TWO, THREE) for b in (ONE, TWO, THREE) if a != b)
    assert survey.network().link(ONE, TWO) == figures
    assert survey.delay_s(TWO, THREE) == 0.001
    survey.measure_again()
    ((node_id, order),) = survey.due()
    # The survey orders it again while the first measurement runs. The first answer still counts.
    survey.measure_again()
    again = Link(delay_s=0.003, bytes_per_s=1e8)
    survey.take_report(node_id, "10.0.0.1", report((order.peers[0].node_id, again)))
    assert survey.network().link(node_id, order.peers[0].node_id) == again
    assert survey.due()
    clock.now_s += REFRESH_S
    assert survey.due()
    survey.forget(TWO)
    assert survey.network().link(ONE, TWO) == ASSUMED


def test_unordered_and_impossible_figures_are_ignored() -> None:
    clock = Clock()
    survey = LinkSurvey(clock)
    for node_id in (ONE, TWO):
        survey.take_report(node_id, "10.0.0.1", report())
    survey.take_report(ONE, "10.0.0.1", report((TWO, Link(delay_s=0.001, bytes_per_s=1e8))))
    assert survey.delay_s(ONE, TWO) is None, "it was not ordered"
    clock.now_s += SETTLE_S
    assert survey.due()
    survey.take_report(ONE, "10.0.0.1", report((TWO, Link(delay_s=float("nan"), bytes_per_s=1e8))))
    assert survey.delay_s(ONE, TWO) is None


def test_a_wrong_clock_is_reported() -> None:
    survey = LinkSurvey(Clock())
    survey.take_report(ONE, "10.0.0.1", report())
    member = Member(ONE, "one", machine())
    for beat in range(10):
        survey.take_clock(ONE, 5000.0 + beat + 30, 5000.0 + beat)
    assert [warning.cause for warning in survey.warnings(member)] == ["clock"]


def test_a_measured_pace_is_kept_for_the_next_start(tmp_path: Path, device: torch.device) -> None:
    file = tmp_path / "pace.json"
    pace = probe_pace(device, 1, file)
    assert pace.dispatch_s > 0
    assert pace.memory_bytes_per_s > 1e8
    assert {"fp32", "int8"} <= {name for name, speed in pace.speeds.items() if speed.is_usable}
    few, many = pace.speeds["fp32"].seconds[0], pace.speeds["fp32"].seconds[-1]
    assert many > (3 * few if device.type == "cpu" else 0)
    assert probe_pace(device, 1, file) == pace
    file.write_text("damaged")
    shared = probe_pace(device, 1, file, is_shared=True)
    assert set(shared.speeds) == set(pace.speeds)
    assert not shared.speeds["fp32"].seconds
