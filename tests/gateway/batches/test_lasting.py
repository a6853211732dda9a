"""Batches outlive the gateway: killed or stopped, it goes on where it was, and nothing is charged twice."""

import json
from collections import Counter
from pathlib import Path

import pytest
from openai import OpenAI

from accounting.money import parse_usd
from tests.databases import Databases
from tests.fakes import openai_provider as provider
from tests.gateway.batches.mill import running_mill
from tests.gateway.batches.working import answers, begin, ended, gateway_before, jsonl, line, lines
from tests.gateways import Gateway, running_gateway, until

# Requests of one batch at one backend, or at a provider.
ABREAST = 4
ABREAST_PAID = 8
PAID = 30


def test_a_killed_gateway_goes_on_where_it_was(tmp_path: Path) -> None:
    """Only requests without an answer are sent again."""
    texts = [f"text {at}" for at in range(40)] + [f"wait {at}" for at in range(40)]
    with running_mill() as mill:
        mill.holds = True
        with gateway_before(mill, tmp_path) as gateway:
            key = gateway.new_key("lasting", "pool")
            client = gateway.openai(key)
            batch = begin(client, lines(texts))
            until(lambda: completed(client, batch.id) == 40 or None)
            until(lambda: len(mill.asked) > 40 or None)
            gateway.process.kill()
            gateway.process.wait(60)
        mill.holds = False
        with gateway_before(mill, tmp_path) as gateway:
            client = gateway.openai(key)
            batch = ended(client, batch.id, 60)
            rows = answers(client, batch.output_file_id)
            assert batch.status == "completed"
            assert sorted(row["custom_id"] for row in rows) == sorted(f"id-{at}" for at in range(len(texts)))
            assert len({row["response"]["request_id"] for row in rows}) == len(texts)
            twice = [text for text, times in Counter(mill.asked).items() if times > 1]
            assert 0 < len(twice) <= ABREAST
            assert all(text.startswith("wait") for text in twice)


@pytest.mark.slow
def test_a_stopped_gateway_goes_on_where_it_was(tmp_path: Path, databases: Databases) -> None:
    with databases.database("postgresql", migrated=False) as dsn, running_mill() as mill:
        mill.delay_s = 0.02
        with gateway_before(mill, tmp_path, DATABASE__DSN=dsn) as gateway:
            words = ("key", "create", "lasting", "--lanes", "pool", "--json")
            key = json.loads(gateway.cli(*words, environment={"MILLRACE_DATABASE__DSN": dsn}))["api_key"]
            batch = begin(gateway.openai(key), lines(f"text {at}" for at in range(60)))
            until(lambda: len(mill.asked) > 20 or None)
            assert gateway.stop() == 0
        with gateway_before(mill, tmp_path, DATABASE__DSN=dsn) as gateway:
            client = gateway.openai(key)
            batch = ended(client, batch.id)
            assert sorted(mill.asked) == sorted(f"text {at}" for at in range(60))
            assert len(answers(client, batch.output_file_id)) == 60
            assert [one.id for one in client.batches.list(after=begin(client, lines(["x"])).id)] == [batch.id]
            assert {file.purpose for file in client.files.list()} == {"batch", "batch_output"}


def test_what_a_killed_gateway_bought_is_charged_once(tmp_path: Path) -> None:
    """No own machine has the model, so that the cloud is asked at once."""
    with provider.openai_provider() as cloud:
        keys = tmp_path / "cloud.keys"
        keys.write_text(f"OPENAI_KEY={provider.KEY}\n")
        keys.chmod(0o600)
        model = {
            "model": "openai/fake.slow-chunks",
            "key": "OPENAI_KEY",
            "base_url": f"{cloud.origin}/v1",
            "prompt_usd_per_mtok": "3",
            "completion_usd_per_mtok": "15",
            "max_output_tokens": 1000,
        }
        settings = {"CLOUD__MODELS": json.dumps({"bought": model}), "CLOUD__KEYS_FILE": str(keys)}
        folder = tmp_path / "data"
        with running_gateway(folder, model=None, settings=settings) as gateway:
            gateway.cli("credit", "add", "5.00")
            key = gateway.new_key("paid", "pool,cloud")
            content = jsonl(line(f"id-{at}", "one two three", model="bought", max_tokens=60) for at in range(PAID))
            batch = begin(gateway.openai(key), content)
            until(lambda: len(cloud.requests) > ABREAST_PAID or None)
            gateway.process.kill()
            gateway.process.wait(60)
        with running_gateway(folder, model=None, settings=settings) as gateway:
            client = gateway.openai(key)
            batch = ended(client, batch.id, 60)
            rows = answers(client, batch.output_file_id)
            assert [len(rows), batch.status] == [PAID, "completed"]
            assert PAID <= len(cloud.requests) <= PAID + ABREAST_PAID
            usage = rows[0]["response"]["body"]["usage"]
            expected = PAID * (usage["prompt_tokens"] * 3000 + usage["completion_tokens"] * 15_000)
            until(lambda: charged(gateway) >= expected or None)
            assert charged(gateway) == expected


def completed(client: OpenAI, batch_id: str) -> int:
    counts = client.batches.retrieve(batch_id).request_counts
    return counts.completed if counts else 0


def charged(gateway: Gateway) -> int:
    row = json.loads(gateway.cli("balance", "--json"))[0]
    return 5 * 10**9 - parse_usd(row["credits_usd"])
