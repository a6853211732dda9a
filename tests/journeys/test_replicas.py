"""Gateways of one owner that take up each other's answers: to the caller nothing has happened, token for token."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx
import pytest

from tests.clusters import DEMO_MODEL
from tests.examples import examples
from tests.fakes.cut_wire import Scissors, wire_to
from tests.gateway.lanes.test_cluster import TEMPLATE, WEATHER
from tests.gateways import Gateway, running_gateway
from tests.streams import said

MODEL = "demo"
TOKENS = 120
ASKED = [{"role": "user", "content": "Tell me of the wheel."}]


@dataclass
class Replicas:
    """`left` and `right` have the model. `asker` has both in its pool, `right` has `left`; all by wires."""

    left: Gateway
    right: Gateway
    asker: Gateway
    scissors: Scissors


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    folder, scissors = tmp_path_factory.mktemp("replicas"), Scissors()
    model = folder / MODEL
    shutil.copytree(DEMO_MODEL, model)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    with ExitStack() as stack:
        left = stack.enter_context(running_gateway(folder / "left", model=model, nodes=1))
        to_left = _entry("left", stack.enter_context(wire_to(left.base_url, scissors)), left)
        pool = {"POOL__BACKENDS": json.dumps([to_left])}
        right = stack.enter_context(running_gateway(folder / "right", model=model, nodes=1, settings=pool))
        to_right = _entry("right", stack.enter_context(wire_to(right.base_url, scissors)), right)
        pool = {"POOL__BACKENDS": json.dumps([to_left, to_right])}
        asker = stack.enter_context(running_gateway(folder / "asker", model=None, settings=pool))
        yield Replicas(left, right, asker, scissors)


def _entry(name: str, base_url: str, gateway: Gateway) -> dict[str, str]:
    return {"name": name, "base_url": base_url, "api_key": gateway.api_key}


def ask(gateway: Gateway, path: str = "/v1/chat/completions", **fields: Any) -> tuple[httpx.Response, Any]:
    """The whole answer, and what its stream says."""
    body = {
        "model": MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": TOKENS,
    } | fields
    if path.endswith("chat/completions"):
        body = {"messages": ASKED} | body
    answer = gateway.http().post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer, said(answer.content)


def exact(heard: Any) -> Any:
    """How much of a prompt was known depends on who was asked before."""
    choices, usages = heard
    return choices, [usage | {"prompt_tokens_details": None} for usage in usages]


SCENARIOS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "with chance, several": {"temperature": 1.2, "seed": 11, "n": 2},
    "tools": {"temperature": 1.0, "seed": 4, "tools": [WEATHER], "tool_choice": "required"},
    "schema": {"temperature": 1.0, "seed": 5, "response_format": {"type": "json_object"}, "max_tokens": 60},
    "completion": {"path": "/v1/completions", "prompt": "Once upon a time", "temperature": 0.7, "seed": 3},
}


@pytest.mark.parametrize(
    "name", [name if name == "greedy" else pytest.param(name, marks=pytest.mark.slow) for name in SCENARIOS]
)
def test_an_answer_that_is_cut_anywhere_goes_on_at_the_replica(replicas: Replicas, name: str) -> None:
    """The caller has one unbroken stream; the ledger has one request with the sum."""
    fields = SCENARIOS[name]
    whole, expected = ask(replicas.left, **fields)
    chance = Random(name)
    for _ in range(examples(2, 4)):
        before = replicas.scissors.cuts
        replicas.scissors.after_bytes = chance.randrange(len(whole.content))
        answer, heard = ask(replicas.asker, **fields)
        assert replicas.scissors.cuts == before + 1
        assert exact(heard) == exact(expected)
        row = replicas.asker.record(answer.headers["x-request-id"])
        assert row["outcome"] == "complete"
        assert row["completion_tokens"] == expected[1][0]["completion_tokens"]
        assert row["prompt_tokens"] == expected[1][0]["prompt_tokens"]


def test_a_gateway_goes_on_with_its_own_cluster(replicas: Replicas) -> None:
    _, expected = ask(replicas.left, temperature=0)
    replicas.scissors.after_bytes = 9000
    answer, heard = ask(replicas.right, temperature=0, provider={"order": ["left"]})
    assert answer.headers["x-millrace-lane"] == "pool"
    assert exact(heard) == exact(expected)
    assert replicas.right.record(answer.headers["x-request-id"])["lane"] == "cluster"


def test_a_draw_without_a_seed_is_the_same_at_both(replicas: Replicas) -> None:
    """The asking gateway chooses the seed; with a given one the whole answer is compared above."""
    replicas.scissors.posts.clear()
    replicas.scissors.after_bytes = 9000
    ask(replicas.asker, ignore_eos=True)
    bodies = [json.loads(post.partition(b"\r\n\r\n")[2]) for post in replicas.scissors.posts]
    assert len(bodies) == 2
    first, second = bodies
    assert first["seed"] == second["seed"]
    assert len(second["millrace"]["resume"][0]["token_ids"]) > 1


@pytest.mark.parametrize(
    ("extras", "param"),
    [
        ({"resume": []}, "millrace.resume"),
        ({"resume": [{"token_ids": [-1], "characters": 0}]}, "millrace.resume[0].token_ids[0]"),
        ({"resume": [{"token_ids": [1]}]}, "millrace.resume[0].characters"),
        ({"resume": [{"token_ids": [10**9], "characters": 3}]}, "millrace.resume"),
        ({"resume": [{"token_ids": [1], "characters": 1}] * 2}, "millrace.resume"),
        ({"resume": [{"token_ids": [1], "characters": 1}], "weights": "none"}, "millrace.weights"),
    ],
)
def test_what_cannot_be_gone_on_with_names_its_field(
    replicas: Replicas, extras: dict[str, Any], param: str
) -> None:
    body = {"model": MODEL, "messages": ASKED, "stream": True, "millrace": extras}
    answer = replicas.left.http().post("/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    ask(replicas.left, max_tokens=2)


def test_a_gateway_that_is_killed_leaves_its_answer_to_its_replica(replicas: Replicas) -> None:
    """The last test of all: one of the two is gone then, and what breaks off has nobody to go on with it."""
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 240, "ignore_eos": True}
    whole, expected = ask(replicas.left, **fields)
    assert exact(said(_while_killed(replicas, fields))) == exact(expected)
    replicas.scissors.after_bytes = len(whole.content) // 2
    broken = replicas.asker.http().post("/v1/chat/completions", json=_body(fields)).content
    assert b"[DONE]" not in broken
    assert json.loads(broken.strip().rpartition(b"data: ")[2])["error"]["code"] == "upstream_broke_off"


def _while_killed(replicas: Replicas, fields: dict[str, Any]) -> bytes:
    """An answer whose gateway is killed when some of it has come."""
    content, is_killed = b"", False
    body = _body(fields) | {"provider": {"order": ["left"]}}
    with replicas.asker.http().stream("POST", "/v1/chat/completions", json=body) as answer:
        for piece in answer.iter_bytes():
            content += piece
            if not is_killed and len(content) > 3000:
                is_killed = True
                os.kill(replicas.left.process.pid, signal.SIGKILL)
    return content


def _body(fields: dict[str, Any]) -> dict[str, Any]:
    return {"model": MODEL, "stream": True, "messages": ASKED, "stream_options": {"include_usage": True}} | fields
