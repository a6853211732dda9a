"""Nodes of the gateway's own machine are killed: others answer meanwhile, and what has begun goes on."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from gateway.identity.caller import OWNER
from tests.clusters import DEMO_MODEL
from tests.fakes import openai_provider as provider
from tests.gateways import Gateway, running_gateway, until
from tests.journeys.test_lanes import cloud_model
from tests.templates import children_of

MODEL = DEMO_MODEL.name
ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Tell me a story."}]}
LONG = ASKED | {"max_tokens": 300, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("local")
    keys = folder / "cloud.keys"
    keys.write_text(f"OPENAI_KEY={provider.KEY}\n")
    keys.chmod(0o600)
    with provider.openai_provider() as cloud:
        settings = {
            "CLOUD__MODELS": json.dumps({MODEL: cloud_model("openai", "fake", f"{cloud.origin}/v1")}),
            "CLOUD__KEYS_FILE": str(keys),
        }
        with running_gateway(folder / "data", nodes=1, settings=settings) as gateway:
            yield gateway


def agent(gateway: Gateway) -> psutil.Process:
    return children_of(psutil.Process(gateway.process.pid), "cluster.nodes.node_process")[-1]


def first_lane(gateway: Gateway, question: dict[str, Any]) -> str:
    candidates = gateway.admin("/admin/route/explain", question)["candidates"]
    return str(candidates[0]["lane"]) if candidates else ""


def test_killed_nodes_come_back_and_others_answer_meanwhile(gateway: Gateway) -> None:
    own = gateway.new_key("own", "cluster")
    wanted = {"name": "both", "user": OWNER, "lanes": ["cluster", "cloud"]}
    question = {"request": ASKED, "key": gateway.admin("/admin/keys", wanted)["key_id"]}
    asked: dict[str, Any] = {"headers": {"authorization": f"Bearer {own}"}, "timeout": 120.0}
    url = f"{gateway.base_url}/chat/completions"
    expected = httpx.post(url, json=LONG, trust_env=False, **asked).json()["choices"][0]["message"]["content"]
    for times in (1, 2):
        text: list[str] = []
        begun = threading.Event()

        def listen(text: list[str] = text, begun: threading.Event = begun) -> None:
            with httpx.stream("POST", url, json=LONG | {"stream": True}, trust_env=False, **asked) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: {"):
                        text += (
                            choice["delta"].get("content") or "" for choice in json.loads(line[6:])["choices"]
                        )
                        begun.set()

        reader = threading.Thread(target=listen)
        reader.start()
        assert begun.wait(60)
        agent(gateway).kill()
        cluster = until(
            lambda: found if "killed by signal 9" in (found := gateway.admin("/admin/cluster"))["reason"] else None
        )
        assert "killed by signal 9" in cluster["absent"]["node-1"]
        assert ("2 times in a row" in cluster["absent"]["node-1"]) is (times == 2)
        assert f"node-1 {cluster['absent']['node-1']}" in cluster["reason"]
        decided = gateway.admin("/admin/route/explain", question)
        assert [candidate["lane"] for candidate in decided["candidates"]] == [f"cloud:{MODEL}", "cluster"]
        assert "cluster is not ready: " in decided["reason"]
        assert "killed by signal 9" in decided["reason"]
        reader.join(120)
        assert "".join(text) == expected
        until(lambda: not gateway.admin("/admin/cluster")["absent"] or None)
        until(lambda: first_lane(gateway, question) == "cluster" or None)
