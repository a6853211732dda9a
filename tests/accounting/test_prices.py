"""The price book against the list of the pinned litellm, and the owner's prices over it."""

import subprocess
import sys
from dataclasses import replace

import pytest

from accounting.chart import provider_accrued, terms_of
from accounting.errors import PriceUnknown
from accounting.metering.prices import CloudPrices, LongContext, PriceBook
from accounting.money import Price

OWN = Price(1, 2, 3)


@pytest.fixture(scope="module")
def book() -> PriceBook:
    own = {
        ("cluster", "*"): OWN,
        ("cloud", "openai/gpt-4o"): OWN,
        ("cloud", "local/model"): OWN,
        ("cloud", "x"): OWN,
    }
    return PriceBook(own, "2026-11", CloudPrices.installed())


def test_known_models_have_their_providers_prices(book: PriceBook) -> None:
    mini = book.find("cloud", "gpt-4o-mini")
    assert mini.price == Price(150_000_000, 75_000_000, 600_000_000)
    assert (mini.provider, mini.max_input_tokens, mini.max_output_tokens) == ("openai", 128_000, 16_384)
    assert mini.source.startswith("litellm-1.")
    assert book.find("cloud", "openai/gpt-4o-mini").price == mini.price
    assert book.find("cloud", "anthropic/claude-sonnet-4-5").price == Price(3 * 10**9, 3 * 10**8, 15 * 10**9)


def test_a_long_prompt_may_have_another_price(book: PriceBook) -> None:
    gemini = book.find("cloud", "gemini/gemini-2.5-pro")
    dearer = Price(2_500_000_000, 250_000_000, 15_000_000_000)
    assert gemini.long_context == LongContext(200_000, dearer)
    assert gemini.price_for(200_000) == gemini.price
    assert gemini.price_for(200_001) == dearer


def test_own_prices_go_first_and_keep_the_listed_limits(book: PriceBook) -> None:
    assert book.find("cluster", "anything").price == OWN
    ours = book.find("cloud", "openai/gpt-4o")
    assert (ours.price, ours.source, ours.provider, ours.max_input_tokens) == (OWN, "2026-11", "openai", 128_000)
    assert book.find("cloud", "local/model").provider == "local"


def test_a_book_over_another_has_its_prices_first_and_changes_nothing_below(book: PriceBook) -> None:
    other = Price(7, 7, 8)
    over = book.over({("cloud", "openai/gpt-4o"): other, ("cloud", "y"): other}, "operators")
    found = over.find("cloud", "openai/gpt-4o")
    assert (found.price, found.source, found.max_input_tokens) == (other, "operators", 128_000)
    assert over.find("cloud", "openai/gpt-4o-mini", name="y").price == other
    below = over.find("cloud", "local/model")
    assert (below.price, below.source) == (OWN, "2026-11")
    assert book.find("cloud", "openai/gpt-4o").price == OWN


def test_two_names_of_one_model_may_have_two_prices(book: PriceBook) -> None:
    assert book.find("cloud", "openai/gpt-4o-mini", name="x").price == OWN
    assert book.find("cloud", "openai/gpt-4o-mini", name="y").price == Price(150_000_000, 75_000_000, 600_000_000)


@pytest.mark.parametrize(
    "model", ["vertex_ai-language-models/gemini", "my model", "naïve:model/x", "m" * 200, "/x", ""]
)
def test_any_provider_can_be_owed(book: PriceBook, model: str) -> None:
    priced = book.find("cloud", model, name="x")
    assert terms_of(provider_accrued(priced.provider)).kind == "liability"


@pytest.mark.parametrize(
    ("lane", "model"),
    [
        ("cloud", "no-such-model"),
        ("cloud", "anthropic/gpt-4o-mini"),
        ("cloud", "sample_spec"),
        ("pool", "gpt-4o-mini"),
    ],
)
def test_no_price_is_an_error_not_zero(book: PriceBook, lane: str, model: str) -> None:
    with pytest.raises(PriceUnknown):
        book.find(lane, model)


def test_each_listed_token_price_can_be_read() -> None:
    prices = CloudPrices.installed()
    known = [entry for name in prices._entries if (entry := prices.find(name)) is not None]
    assert len(known) > 2_000
    assert all(entry.provider for entry in known)


def test_prices_are_read_without_importing_litellm() -> None:
    script = (
        "import sys; from accounting.metering.prices import CloudPrices; CloudPrices.installed().find('gpt-4o');"
        "sys.exit('litellm' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


def test_thoughts_may_cost_something_else(book: PriceBook) -> None:
    turbo = book.find("cloud", "dashscope/qwen-turbo")
    assert (turbo.price.completion_nano, turbo.price.reasoning_nano) == (200_000_000, 500_000_000)
    assert turbo.charge_for(0, 0, 10**6, 4 * 10**5) == 600_000 * 200 + 400_000 * 500
    assert turbo.price.dearest_completion_nano == 500_000_000
    assert book.find("cloud", "gpt-4o-mini").price.reasoning_nano is None


def test_a_version_is_named_by_what_it_charges(book: PriceBook) -> None:
    gemini = book.find("cloud", "gemini/gemini-2.5-pro")
    assert gemini.id == replace(gemini, source="another list", max_output_tokens=7).id
    others = [
        replace(gemini, lane="pool"),
        replace(gemini, long_context=None),
        replace(gemini, compute_nano=1),
        replace(gemini, price=replace(gemini.price, reasoning_nano=1)),
    ]
    assert len({gemini.id, *(other.id for other in others)}) == 5
