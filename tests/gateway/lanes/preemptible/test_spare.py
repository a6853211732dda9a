"""The rule by which preemptible requests are admitted, and what an offer says of what is idle."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accounting.metering.tokenizers import Pinned
from gateway.lanes.base import Offer
from gateway.lanes.preemptible.admission import OwnWork, Places, choose
from gateway.lanes.preemptible.jobs import PreemptibleJobs
from gateway.lanes.preemptible.sensors import gpu_percent, is_on_battery
from gateway.lanes.preemptible.spare import spare_models
from tests.gateway.requests.roads import PRICE

IDLE = OwnWork(0, 0)
NOBODY = Places({}, {}, 4)
OFFER = Offer("pool", "first", "m", slots=2, context_tokens=4096, weights=f"{'a' * 64}/int8")


@pytest.mark.parametrize("work", [OwnWork(1, 0), OwnWork(0, 1)])
def test_own_work_comes_before_all(work: OwnWork) -> None:
    assert choose([OFFER], 1, NOBODY, work) == "own_work"


@pytest.mark.parametrize(
    "unfit",
    [
        {"state": "starting"},
        {"state": "draining"},
        {"is_resident": False},
        {"queued": 1},
        {"price": PRICE},
        {"lane": "cloud"},
        {"lane": "market"},
        {"kinds": frozenset(("embedding",))},
        {"slots": 0},
        {"clearance": "public"},
        {"clearance": "internal"},
        {"keeps_data": True},
        {"is_gateway": True},
        {"running": 1},
    ],
)
def test_what_is_not_idle_own_and_in_memory_is_no_place(unfit: dict[str, Any]) -> None:
    assert choose([replace(OFFER, **unfit)], 1, NOBODY, IDLE) == "no_slot"
    assert choose([OFFER], 1, NOBODY, IDLE) == OFFER


def test_each_place_is_given_once() -> None:
    other = Offer("pool", "other", "m")  # says nothing of its slots
    for taken, places, chosen in (
        ({"pool:first": 1}, 2, other),
        ({"pool:first": 1, "pool:other": 4}, 1, OFFER),
        ({"pool:first": 2, "pool:other": 4}, 1, "no_slot"),
    ):
        assert choose([OFFER, other], places, Places(taken, taken, 4), IDLE) == chosen


def test_a_backends_word_may_be_of_preemptible_requests_that_have_ended_since() -> None:
    busy = replace(OFFER, running=2)
    assert choose([busy], 1, Places({}, {"pool:first": 2}, 4), IDLE) == busy
    assert choose([busy], 1, Places({}, {"pool:first": 1}, 4), IDLE) == "no_slot"


@pytest.mark.anyio
async def test_who_has_left_counts_for_as_long_as_a_backend_may_say_so() -> None:
    preemptible_jobs = PreemptibleJobs(lambda: IDLE, 4, told_s=1000.0)
    with preemptible_jobs.staying(OFFER, 1), preemptible_jobs.staying(OFFER, 1):
        assert preemptible_jobs.places.lately == {"pool:first": 2}
    assert (preemptible_jobs.places.taken, preemptible_jobs.places.lately) == ({}, {"pool:first": 2})
    forgetful = PreemptibleJobs(lambda: IDLE, 4)
    with forgetful.staying(OFFER, 1):
        pass
    assert forgetful.places.lately == {}


def test_the_own_cluster_keeps_a_slot_back() -> None:
    for slots, spare in ((4, 3), (2, 1), (1, 1)):
        assert NOBODY.free(Offer("cluster", "cluster", "m", slots=slots)) == spare


def test_a_model_is_offered_as_the_least_of_its_backends() -> None:
    offers = [OFFER, Offer("pool", "other", "m", slots=4, context_tokens=2048, weights=OFFER.weights)]
    tokenizer = Pinned(Path("/m/tokenizer.json"), "B" * 64)
    (spare,) = spare_models(offers, Places({"pool:first": 2}, {}, 4), lambda _: tokenizer)
    assert (spare.slots_free, spare.slots, spare.context_tokens) == (4, 6, 2048)
    assert (spare.weights_sha256, spare.quantization) == ("a" * 64, "int8")
    assert (spare.tokenizer_sha256, spare.tokenizer_path) == ("b" * 64, "/m/tokenizer.json")
    differing = [OFFER, replace(OFFER, weights="", context_tokens=None)]
    (spare,) = spare_models(differing, NOBODY, lambda _: None)
    assert (spare.weights_sha256, spare.context_tokens, spare.tokenizer_sha256) == (None, None, None)


@pytest.mark.parametrize(
    ("supplies", "expected"),
    [
        ({}, None),
        ({"AC": {"type": "Mains", "online": "1"}}, None),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}}, True),
        ({"BAT0": {"type": "Battery", "status": "Full"}}, False),
        (
            {"BAT0": {"type": "Battery", "status": "Discharging"}, "AC": {"type": "Mains", "online": "1"}},
            False,
        ),
        ({"mouse": {"type": "Battery", "scope": "Device", "status": "Discharging"}}, None),
    ],
)
def test_batteries(tmp_path: Path, supplies: dict[str, dict[str, str]], expected: bool | None) -> None:
    for name, files in supplies.items():
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(text + "\n")
    assert is_on_battery(tmp_path) is expected
    assert is_on_battery(tmp_path / "nowhere") is None


@pytest.mark.parametrize(("said", "expected"), [("7\n 35\n", 35.0), ("[N/A]\n", None), ("", None)])
def test_cards(tmp_path: Path, said: str, expected: float | None) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{said}'\n")
    program.chmod(0o700)
    assert gpu_percent(lambda _: str(program)) == expected
    assert gpu_percent(lambda _: None) is None
