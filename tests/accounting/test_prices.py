"""The price book against the list of the pinned litellm, and the owner's prices over it."""

import subprocess
import sys

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
        ("cloud", "house/model"): OWN,
        ("cloud", "x"): OWN,
    }
    return PriceBook(own, "2026-11", CloudPrices.installed())


def test_known_models_have_their_providers_prices(book: PriceBook) -> None:
    mini = book.find("cloud", "gpt-4o-mini")
    assert mini.price == Price(150_000_000, 75_000_000, 600_000_000)
    assert (mini.provider, mini.max_input_tokens, mini.max_output_tokens) == ("openai", 128_000, 16_384)
    assert mini.version.startswith("litellm-1.")
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
    assert (ours.price, ours.version, ours.provider, ours.max_input_tokens) == (OWN, "2026-11", "openai", 128_000)
    assert book.find("cloud", "house/model").provider == "house"


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
