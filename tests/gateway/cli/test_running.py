"""Commands beside a gateway that runs: models are talked to, measured, loaded, paid for; one gateway for all."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import output
from gateway.cli.gateway_client import BORROWED
from tests.gateway.cli import beside
from tests.gateway.cli.beside import MODEL, Outside, completed, data, millrace
from tests.gateways import ForkedCommand, Gateway, running_gateway


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    with beside.outside() as found:
        yield found


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, outside: Outside) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("cli"), model=None, settings=outside.settings) as gateway:
        yield gateway


@contextmanager
def ending(process: ForkedCommand) -> Iterator[None]:
    """Nothing is waited for that a failed test has left running."""
    try:
        yield
    finally:
        process.kill()


def keys(gateway: Gateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = gateway.admin("/admin/keys")["keys"]
    return [key for key in found if key["name"].startswith(BORROWED)]


def test_a_conversation_goes_on_and_its_key_ends_with_it(gateway: Gateway) -> None:
    talk = millrace(
        gateway.folder, "chat", MODEL, "--max-tokens", "8", "--json", said="Once upon a time\n\nAnd then?\n"
    )
    assert talk.exit_code == 0, talk.stderr
    first, second = map(json.loads, talk.stdout.splitlines())
    assert (first["lane"], first["model"], first["completion_tokens"]) == ("pool", MODEL, 8)
    assert first["answer"]
    assert first["first_token_s"] > 0 < first["tokens_per_s"]
    assert second["prompt_tokens"] == first["prompt_tokens"] + 10, "it has been told what was said"
    assert keys(gateway)
    assert all(key["revoked_ns"] for key in keys(gateway))
    assert BORROWED not in millrace(gateway.folder, "key", "list").stdout
    assert BORROWED in millrace(gateway.folder, "key", "list", "--all").stdout
    shown = millrace(gateway.folder, "chat", MODEL, "--max-tokens", "4", said="Once\n")
    assert "pool · 4 tokens" in shown.stderr
    assert "pool" not in shown.stdout
    assert millrace(gateway.folder, "chat", "nothing", said="Once\n").exit_code == output.FAILED
    unclear = millrace(gateway.folder, "chat", said="Once\n")
    assert (unclear.exit_code, MODEL in unclear.stderr) == (output.WRONG_USAGE, True)


def test_an_ollama_of_the_pool_loads_and_puts_away_when_told(gateway: Gateway, outside: Outside) -> None:
    assert data(millrace(gateway.folder, "run", "qwen3:8b", "--json"))["backends"] == ["desk"]
    assert data(millrace(gateway.folder, "stop", "qwen3:8b", "--json"))["stopped_at"] == ["desk"]
    assert outside.told == [{"model": "qwen3:8b"}, {"model": "qwen3:8b", "keep_alive": 0}]
    found = data(millrace(gateway.folder, "advise", MODEL, "--json"))
    assert (found["best"], "desk" in found["ways"][3]["why"]) == ("pool", True)


def test_credits_are_bought_once_and_earnings_looked_at(gateway: Gateway) -> None:
    words = ("topup", "25.00", "--yes", "--id", "first", "--json")
    bought, again = (data(millrace(gateway.folder, *words)) for _ in range(2))
    assert (bought["credits"], bought["status"], bought["id"]) == ("25.00", "open", again["id"])
    assert bought["url"].startswith("http")
    refused = millrace(gateway.folder, "topup", "25.00", said="n\n")
    assert (refused.exit_code, "fee" in refused.stderr) == (output.REFUSED, True)
    assert millrace(gateway.folder, "topup", "x").exit_code == output.WRONG_USAGE
    assert data(millrace(gateway.folder, "earnings", "--json"))["earned"]["payable"] == "0.00"
    unpaid = millrace(gateway.folder, "payout", "5.00")
    assert (unpaid.exit_code, "complete onboarding first" in unpaid.stderr) == (output.FAILED, True)
    assert data(millrace(gateway.folder, "payout", "--onboard", "--json"))["url"].startswith("http")
    assert data(millrace(gateway.folder, "payout", "--json")) == []
    assert all(key["revoked_ns"] for key in keys(gateway))


def test_earnings_at_another_marketplace_are_asked_for_there(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_SELLING__MARKETPLACE_URL", gateway.root)
    monkeypatch.setenv("MILLRACE_SELLING__MARKETPLACE_KEY", gateway.api_key)
    assert data(millrace(tmp_path, "earnings", "--json"))["account"] == "owner"
    monkeypatch.setenv("MILLRACE_SELLING__MARKETPLACE_KEY", "mr-wrong")
    assert millrace(tmp_path, "earnings").exit_code == output.REFUSED
    monkeypatch.setenv("MILLRACE_SELLING__MARKETPLACE_URL", "http://127.0.0.1:9")
    assert millrace(tmp_path, "payout").exit_code == output.UNREACHABLE


def test_a_statement_has_both_sides_in_json_and_csv(gateway: Gateway) -> None:
    for number in range(3):
        assert millrace(gateway.folder, "credit", "add", "1.00", "--id", f"c{number}").exit_code == 0
    found = data(millrace(gateway.folder, "statement", "--json", "--limit", "2"))
    assert [line["amount"] for line in found] == ["1.00", "1.00"]
    assert found[0]["id"] > found[1]["id"]
    assert {line["account"] for line in found} == {"user:owner:paid"}
    assert found[0]["counterpart"] not in ("", "user:owner:paid")
    rows = millrace(gateway.folder, "statement", "--csv").stdout.splitlines()
    assert (len(rows), rows[0].split(",")[0]) == (4, "id")
    assert millrace(gateway.folder, "statement", "--user", "a b").exit_code == output.WRONG_USAGE


def test_figures_of_every_step(gateway: Gateway) -> None:
    words = (
        "bench",
        MODEL,
        "--concurrency",
        "1,3",
        "--requests",
        "1",
        "--max-tokens",
        "8",
        "--prompt-words",
        "16",
    )
    found = data(millrace(gateway.folder, *words, "--json"))
    assert [(step["concurrency"], step["answers"], step["failed"]) for step in found["steps"]] == [
        (1, 1, 0),
        (3, 3, 0),
    ]
    assert all(step["first_token_p50_s"] > 0 and step["tokens_per_s_all"] > 0 for step in found["steps"])
    assert found["steps"][0]["lanes"] == ["pool"]


def test_another_base_url_gets_its_own_key_and_says_no(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("chat", MODEL, "--url", gateway.base_url, "--max-tokens", "2", "--json")
    monkeypatch.setenv("OPENAI_API_KEY", gateway.api_key)
    assert data(millrace(gateway.folder, *words, said="Once\n"))["completion_tokens"] == 2
    monkeypatch.setenv("OPENAI_API_KEY", "mr-wrong")
    assert millrace(gateway.folder, *words, said="Once\n").exit_code == output.REFUSED
    monkeypatch.delenv("OPENAI_API_KEY")
    assert millrace(gateway.folder, *words, said="Once\n").exit_code == output.WRONG_USAGE
    nowhere = ("chat", MODEL, "--url", "http://127.0.0.1:9/v1", "--key-file", str(gateway.folder / "running.json"))
    assert millrace(gateway.folder, *nowhere, said="Once\n").exit_code == output.UNREACHABLE


def test_shells_complete_what_there_is(gateway: Gateway, tmp_path: Path) -> None:
    assert MODEL in completed("millrace chat ", gateway.folder)
    assert completed("millrace stop qw", gateway.folder) == [MODEL]
    assert completed("millrace pool drain d", gateway.folder) == ["desk"]
    assert gateway.api_key[:10] in completed("millrace key revoke mr-", gateway.folder)
    assert completed("millrace chat ", tmp_path) == []


def test_new_requests_are_told_as_they_end(gateway: Gateway) -> None:
    words = ["requests", "-f", "--json", "--limit", "1", "--data-dir", str(gateway.folder)]
    millrace(gateway.folder, "chat", MODEL, "--max-tokens", "2", said="Before\n")
    following = ForkedCommand(words, dict(os.environ))
    with ending(following), following.stdout, following.stderr:
        before = json.loads(following.stdout.readline())["request_id"]
        millrace(gateway.folder, "chat", MODEL, "--max-tokens", "2", said="Once\n")
        after = json.loads(following.stdout.readline())
        assert (after["request_id"] != before, after["lane"]) == (True, "pool")
        following.send_signal(2)
        assert following.wait(60) == 0
