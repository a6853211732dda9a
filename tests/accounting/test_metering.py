"""Token counts: pinned, canonical, bounded."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from accounting.errors import TokenizerMismatch
from accounting.metering.counts import Count, TokenCounter, estimate, load_counter, tokens_max


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small byte-level tokenizer of the kind that most models have."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False
    )
    tokenizer.train_from_iterator(["the mill grinds what the race brings"] * 10, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="module")
def counter(tokenizer_file: Path) -> TokenCounter:
    return load_counter(tokenizer_file, hashlib.sha256(tokenizer_file.read_bytes()).hexdigest())


def test_another_tokenizer_than_the_pinned_one_is_refused(tokenizer_file: Path) -> None:
    with pytest.raises(TokenizerMismatch):
        load_counter(tokenizer_file, "0" * 64)


@given(texts=st.lists(st.text(), max_size=4))
def test_the_bound_for_holds_is_never_passed(counter: TokenCounter, texts: list[str]) -> None:
    assert sum(counter.count(text).tokens for text in texts) <= tokens_max(texts)


def test_each_count_tells_where_it_comes_from(counter: TokenCounter) -> None:
    assert counter.count("the mill") == Count(2, "tokenizer")
    assert counter.count("") == Count(0, "tokenizer")
    assert estimate("the mill!") == Count(3, "estimate")
    assert estimate("") == Count(0, "estimate")
