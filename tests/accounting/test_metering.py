"""Token counts: pinned, canonical, and the same for every party that has the text."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.errors import TokenizerMismatch
from accounting.metering.counts import estimate_tokens, tokens_max
from accounting.metering.delivered import Called, Counts, Delivered, TokenCounter, count_all, count_delivered
from accounting.metering.tokenizers import Pinned, Tokenizers, load_counter
from tests.accounting.tokenizer import make_tokenizer, pinned


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Pinned:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def counter(good: Pinned) -> TokenCounter:
    return load_counter(good)


def test_another_file_than_the_pinned_one_is_not_counted_with(
    good: Pinned, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TokenizerMismatch):
        load_counter(Pinned(good.path, "0" * 64))
    no_tokenizer = tmp_path / "tokenizer.json"
    no_tokenizer.write_text(json.dumps({"model": "none"}))
    found = Tokenizers(
        {
            "good": good,
            "other": Pinned(good.path, "0" * 64),
            "none": pinned(no_tokenizer),
            "away": Pinned(tmp_path / "away.json", "1" * 64),
        }
    )
    assert found.find("good") is found.find("good") is not None
    for model in ("other", "none", "away"):
        assert found.knows(model)
        assert found.find(model) is found.find(model) is None
    assert len(caplog.records) == 3
    assert not found.knows("unknown")
    found.look_also({"unknown": good}.get)
    assert found.find("unknown") is found.find("good")


@given(texts=st.lists(st.text(), max_size=4))
def test_the_bound_for_holds_is_never_passed(counter: TokenCounter, texts: list[str]) -> None:
    assert counter.count(texts) <= tokens_max(texts)


def test_only_what_was_said_counts_and_each_part_by_itself(counter: TokenCounter) -> None:
    assert count_delivered(counter, Delivered()) == Counts(0, 0, 0, "tokenizer")
    assert count_delivered(counter, Delivered("the mill")) == Counts(2, 0, 0, "tokenizer")
    long = Delivered("the mill" * 5_000, "the mill", (Called("mill", "the mill"), Called("the", "")))
    of_tools = counter.count(["mill", "the mill", "the"])
    assert count_delivered(counter, long) == Counts(10_000, 2, of_tools, "tokenizer")
    assert count_all(counter, [long, long]).completion_tokens == 2 * (10_002 + of_tools)


@given(content=st.text(), reasoning=st.text(), name=st.text(), arguments=st.text())
def test_without_a_tokenizer_characters_count_by_their_length(
    content: str, reasoning: str, name: str, arguments: str
) -> None:
    delivered = Delivered(content, reasoning, (Called(name, arguments),))
    counts = count_delivered(None, delivered)
    assert counts.source == "characters"
    # Limits reckon with the same rule.
    assert counts.content_tokens == estimate_tokens(content)
    assert counts.reasoning_tokens == estimate_tokens(reasoning)
    assert counts.tool_tokens == estimate_tokens(name + arguments)
    assert estimate_tokens("mill") == estimate_tokens("磨") == estimate_tokens("🌾") == 1


@given(st.text(st.characters(codec=None, categories=["Cs", "Lu", "Lo", "So", "Mn"])))
def test_halves_of_characters_count_as_their_reader_sees_them(counter: TokenCounter, text: str) -> None:
    shown = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    for each in (None, counter):
        assert count_delivered(each, Delivered(text)) == count_delivered(each, Delivered(shown))


def test_a_character_in_two_halves_is_one(counter: TokenCounter) -> None:
    halves = "\ud83c" + "\udf3e"
    assert count_delivered(counter, Delivered(halves)) == count_delivered(counter, Delivered("🌾"))
