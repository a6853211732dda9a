"""Commands that set prices and further names of models, beside a gateway that goes by them."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from gateway.cli import output
from tests.gateway.cli import beside
from tests.gateway.cli.beside import MODEL, Outside, data, millrace
from tests.gateways import Gateway, running_gateway, until

BIG = {"model": "openai/m", "prompt_usd_per_mtok": "1.00", "completion_usd_per_mtok": "2.00"}


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    with beside.outside() as found:
        yield found


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, outside: Outside) -> Iterator[Gateway]:
    settings = outside.settings | {
        "CLOUD__MODELS": json.dumps({"big": BIG}),
        "POOL__ALIASES": json.dumps({"of-the-settings": [MODEL]}),
    }
    with running_gateway(tmp_path_factory.mktemp("terms"), model=None, settings=settings) as gateway:
        yield gateway


def priced(gateway: Gateway) -> tuple[str, str]:
    rows: list[dict[str, Any]] = data(millrace(gateway.folder, "prices", "list", "--json"))
    [row] = [row for row in rows if (row["lane"], row["model"]) == ("cloud", "big")]
    return row["prompt_usd_per_mtok"], row["completion_usd_per_mtok"]


def test_the_cloud_worker_is_ready_before_anybody_asks(gateway: Gateway) -> None:
    until(lambda: any("worker.ready" in line for line in gateway.log) or None)


def test_a_price_is_set_and_taken_back(gateway: Gateway) -> None:
    assert priced(gateway) == ("1.00", "2.00")
    words = ("prices", "set", "big", "--prompt", "0.15", "--completion", "0.60")
    done = data(millrace(gateway.folder, *words, "--json"))
    assert (done["model"], done["prompt_usd_per_mtok"], done["completion_usd_per_mtok"]) == ("big", "0.15", "0.60")
    assert priced(gateway) == ("0.15", "0.60")
    versions = data(millrace(gateway.folder, "prices", "show", "big", "--json"))
    assert [row["prompt_usd_per_mtok"] for row in versions] == ["0.15", "1.00"]
    said = millrace(gateway.folder, "prices", "set", "big", "--prompt", "0.2", "--completion", "0.8")
    told = "$0.20 per 1M input tokens, $0.80 per 1M output tokens"
    assert (said.exit_code, told in said.stdout + said.stderr) == (0, True)
    back = millrace(gateway.folder, "prices", "unset", "big")
    assert (back.exit_code, "the settings" in back.stdout + back.stderr) == (0, True)
    assert priced(gateway) == ("1.00", "2.00")
    actions = [entry["action"] for entry in gateway.admin("/admin/audit?target=model:big")["entries"]]
    assert actions == ["price.remove", "price.set", "price.set"]


@pytest.mark.parametrize(
    ("words", "code", "names"),
    [
        (("set", "nothing", "--prompt", "1", "--completion", "1"), output.WRONG_USAGE, "cloud.models"),
        (("set", "big", "--prompt", "a lot", "--completion", "1"), output.WRONG_USAGE, "--prompt: "),
        (("set", "big", "--prompt", "1"), output.WRONG_USAGE, "--completion"),
        (("unset", "big"), output.FAILED, "big"),
    ],
)
def test_what_cannot_be_a_price_is_named(gateway: Gateway, words: tuple[str, ...], code: int, names: str) -> None:
    refused = millrace(gateway.folder, "prices", *words)
    assert (refused.exit_code, names in refused.stderr) == (code, True), refused.stderr
    assert priced(gateway) == ("1.00", "2.00")


def test_a_further_name_is_given_used_and_taken_away(gateway: Gateway) -> None:
    def ask(model: str) -> str | None:
        messages: Any = [{"role": "user", "content": "Hello"}]
        stream = gateway.openai().chat.completions.create(
            model=model, messages=messages, max_tokens=2, stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

    given = data(millrace(gateway.folder, "pool", "alias", "gpt-4o-mini", "big", MODEL, "--json"))
    assert (given["alias"], given["models"]) == ("gpt-4o-mini", ["big", MODEL])
    rows = data(millrace(gateway.folder, "pool", "aliases", "--json"))
    assert [(row["alias"], row["models"]) for row in rows] == [
        ("gpt-4o-mini", ["big", MODEL]),
        ("of-the-settings", [MODEL]),
    ]
    assert len({row["origin"] for row in rows}) == 2
    table = millrace(gateway.folder, "pool", "aliases").stdout
    assert f"big, {MODEL}" in table
    assert ask("gpt-4o-mini") == ask("of-the-settings") == "w0 w1 "
    said = millrace(gateway.folder, "pool", "unalias", "gpt-4o-mini")
    assert said.exit_code == 0, said.stderr
    with pytest.raises(openai.NotFoundError):
        ask("gpt-4o-mini")
    for words, code, names in (
        (("unalias", "gpt-4o-mini"), output.FAILED, "gpt-4o-mini"),
        (("unalias", "of-the-settings"), output.FAILED, "settings"),
        (("alias", "same", "same"), output.WRONG_USAGE, "MODELS: "),
        (("alias", "same", "none", MODEL), output.WRONG_USAGE, "none"),
    ):
        refused = millrace(gateway.folder, "pool", *words)
        assert (refused.exit_code, names in refused.stderr) == (code, True), refused.stderr
    assert [row["alias"] for row in data(millrace(gateway.folder, "pool", "aliases", "--json"))] == [
        "of-the-settings"
    ]
