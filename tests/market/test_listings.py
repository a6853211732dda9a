"""Listings: every field is checked by name, hours and idleness are what an owner would expect of them."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from market.errors import ListingInvalid, RecordInvalid
from market.protocol.listings.endpoint import check_endpoint
from market.protocol.listings.hours import WeeklyWindow, is_open
from market.protocol.listings.idle import IdleRule, MachineCondition, hindrance
from market.protocol.listings.listing import (
    Capacity,
    Datacenter,
    DataPolicy,
    Listing,
    is_on_offer,
    read_listing,
)
from market.protocol.listings.prices import Prices, cost_nano
from market.protocol.records.amounts import Amount, read_amount, write_amount
from market.protocol.records.envelope import Record
from tests.market.parties import NOW_MS, signed_record

LISTING = Listing(
    id="gemma-3-1b-it",
    hugging_face_id="google/gemma-3-1b-it",
    weights_sha256="a" * 64,
    tokenizer_sha256="b" * 64,
    quantization="bf16",
    context_length=32_768,
    max_output_length=8_192,
    pricing=Prices(Amount(20_000_000), Amount(80_000_000), Amount(5_000_000)),
    datacenters=(Datacenter("DE"),),
    data_policy=DataPolicy(retains_prompts=False, may_publish=False, training=False),
    capacity=Capacity(4, 40),
    sealing_key="c" * 64,
    endpoint="https://quiet-river-lamp.trycloudflare.com",
)
FIVE_MINUTES_MS = 300_000


def listed(**changed: Any) -> Record:
    """The listing as a record, with members of its JSON replaced: `a__b` is b within a."""
    members = json.loads(msgspec.json.encode(LISTING, enc_hook=write_amount))
    for path, value in changed.items():
        *outer, last = path.split("__")
        within = members
        for name in outer:
            within = within[name]
        within[last] = value
    return signed_record("ann", "listing", AsIs(members), "gemma", 1, lasts_ms=FIVE_MINUTES_MS)


def AsIs(members: dict[str, Any]) -> msgspec.Struct:  # noqa: N802
    shape = msgspec.defstruct("AsIs", [(name, Any) for name in members])
    return shape(**members)


def test_a_listing_reads_as_it_was_made() -> None:
    record = signed_record("ann", "listing", LISTING, "gemma", 1, lasts_ms=FIVE_MINUTES_MS)
    assert read_listing(record) == read_listing(listed()) == LISTING
    assert len(record.raw) < 2_500


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"id": ""}, "id"),
        ({"weights_sha256": "A" * 64}, "weights_sha256"),
        ({"quantization": "int3"}, "quantization"),
        ({"context_length": 0}, "context_length"),
        ({"context_length": "32768"}, "context_length"),
        ({"max_output_length": 40_000}, "max_output_length"),
        ({"pricing__prompt": 20}, "pricing.prompt"),
        ({"pricing__completion": "-1"}, "pricing.completion"),
        ({"pricing__input_cache_read": "20000001"}, "pricing.input_cache_read"),
        ({"datacenters": []}, "datacenters"),
        ({"datacenters": [{"country_code": "Germany"}]}, "datacenters[0].country_code"),
        ({"data_policy__retention_days": 3}, "data_policy.retention_days"),
        ({"data_policy__training": "no"}, "data_policy.training"),
        ({"capacity__slots": 0}, "capacity.slots"),
        ({"capacity": {"slots": 1}}, "capacity.tokens_per_second"),
        ({"hours": [{"days": [7], "begins": "22:00", "ends": "07:00"}]}, "hours[0].days[0]"),
        ({"hours": [{"days": [1], "begins": "24:00", "ends": "07:00"}]}, "hours[0].begins"),
        ({"idle": {"gpu_percent_max": 101}}, "idle.gpu_percent_max"),
        ({"refuses": ["everything"]}, "refuses[0]"),
        ({"sealing_key": "c"}, "sealing_key"),
        ({"endpoint": "http://quiet-river-lamp.trycloudflare.com"}, "endpoint"),
    ],
)
def test_what_is_wrong_is_named(changed: dict[str, Any], field: str) -> None:
    with pytest.raises((RecordInvalid, ListingInvalid)) as refused:
        read_listing(listed(**changed))
    assert getattr(refused.value, "field", "").removeprefix("body.").replace("[...]", "[0]") == field


@pytest.mark.parametrize(
    "url",
    [
        "https://10.0.0.1",
        "https://127.1",
        "https://0x7f000001",
        "https://2130706433",
        "https://1.0x7f",
        "https://[::1]",
        "https://[::ffff:10.0.0.1]",
        "https://localhost",
        "https://nas.local",
        "https://metadata.google.internal",
        "https://a.b:8443",
        "https://user@a.example",
        "https://a.example/path",
        "https://a.example?x",
        "https://a.example#x",
        "https://a.example\\.b",
        "https://a.example.",
        "https://-a.example",
        "https://a..example",
        "https://A.example",
        "https://ｇｏｏｇｌｅ.com",
        "https://a.example\n",
        "ftp://a.example",
        "//a.example",
        "https://",
        "http://127.0.0.1:80",
        f"https://{'a.' * 200}example",
    ],
)
def test_no_address_leads_into_the_buyers_own_network(url: str) -> None:
    with pytest.raises(ListingInvalid):
        check_endpoint(url)


def test_addresses_that_are_taken() -> None:
    check_endpoint("https://sell.example.org")
    check_endpoint("https://xn--bcher-kva.example")
    check_endpoint("http://127.0.0.1:4711", allows_loopback=True)


times = st.integers(0, 24 * 60 - 1).map(lambda minute: f"{minute // 60:02}:{minute % 60:02}")
offsets = st.tuples(st.sampled_from("+-"), st.integers(0, 14 * 60)).map(
    lambda it: f"{it[0]}{it[1] // 60:02}:{it[1] % 60:02}"
)
windows = st.builds(
    WeeklyWindow, st.lists(st.integers(0, 6), max_size=7, unique=True).map(tuple), times, times, offsets
)


def is_open_by_calendar(window: WeeklyWindow, now_ms: int) -> bool:
    """The same by Python's calendar: did it begin today or yesterday, and has it not ended yet?"""
    sign = -1 if window.utc_offset[0] == "-" else 1
    offset = sign * timedelta(hours=int(window.utc_offset[1:3]), minutes=int(window.utc_offset[4:]))
    now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(timezone(offset))
    for days_ago in (0, 1):
        day = now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days_ago)
        begins, ends = (
            day + timedelta(hours=int(at[:2]), minutes=int(at[3:])) for at in (window.begins, window.ends)
        )
        ends += timedelta(days=ends <= begins)
        if day.weekday() in window.days and begins <= now < ends:
            return True
    return False


@given(windows, st.integers(NOW_MS, NOW_MS + 14 * 86_400_000))
def test_hours_are_those_of_the_calendar(window: WeeklyWindow, now_ms: int) -> None:
    assert is_open([window], now_ms) == is_open_by_calendar(window, now_ms)


def test_without_hours_it_is_always_open() -> None:
    assert is_open([], NOW_MS)
    assert not is_open([WeeklyWindow((), "00:00", "00:00")], NOW_MS)
    assert is_on_offer(LISTING, NOW_MS)
    assert not is_on_offer(msgspec.structs.replace(LISTING, is_ready=False), NOW_MS)


def test_an_owner_comes_before_the_market() -> None:
    rule = IdleRule(queue_empty_minutes=5, gpu_percent_max=20)
    idle = MachineCondition(300, gpu_percent=20)
    assert hindrance(rule, idle) is None
    assert hindrance(rule, MachineCondition(299, 0)) == "own_requests"
    assert hindrance(IdleRule(queue_empty_minutes=0), MachineCondition(0)) == "own_requests"
    assert hindrance(IdleRule(queue_empty_minutes=0), MachineCondition(0.1)) is None
    assert hindrance(rule, MachineCondition(300, 21)) == "gpu"
    assert hindrance(rule, MachineCondition(300, None)) == "gpu"
    assert hindrance(IdleRule(), MachineCondition(300, None)) is None
    assert hindrance(IdleRule(), MachineCondition(300, 0, is_on_battery=True)) == "battery"
    assert hindrance(IdleRule(on_battery=True), MachineCondition(300, 0, is_on_battery=True)) is None


def test_prices_with_failures_and_waiting_in_them() -> None:
    prices = Prices(Amount(50_000_000), Amount(80_000_000), Amount(5_000_000), Amount(7))
    assert cost_nano(prices, 30, 0, 12) == 2_467
    assert cost_nano(prices, 30, 30, 12) == 1_117
    assert cost_nano(prices, 30, 0, 0) == 0


@given(st.integers(0, 10**15))
def test_amounts_travel_as_text(nano: int) -> None:
    assert read_amount(Amount, write_amount(Amount(nano))) == nano
