"""Strangers' tokenizers: those of known models pass, programs in their place do not, and no byte is two tokens."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from accounting.metering.delivered import SEGMENT_CHARS, Delivered, TokenCounter
from market.errors import TokenizerRefused
from market.protocol.counting.shapes import check_shape
from market.protocol.counting.token_count import Counting
from tests.accounting.tokenizer import make_tokenizer

MARK = "\u2581"
DEMO = Path(__file__).parents[2] / "demo" / "model" / "tokenizer.json"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LLAMA_3 = rf"{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
UPPER_FIRST = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
MISTRAL = (
    rf"{UPPER_FIRST}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
GPT_4O = (
    rf"{UPPER_FIRST}{_ENDING}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
PATTERNS = {
    "gpt 2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama 3": LLAMA_3,
    "qwen 2 and 3": LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}"),
    "qwen 3.5": rf"{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
    "gpt 4o": GPT_4O,
    "mistral": MISTRAL,
    "deepseek": r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
    "of one kind": r"\p{N}{1,3}",
}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def shaped(**parts: Any) -> bytes:
    return json.dumps({"model": {"type": "BPE"}} | parts).encode()


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def in_sequence(part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": [part, BYTE_LEVEL]}


def test_known_models_tokenizers_pass(tmp_path: Path) -> None:
    check_shape(DEMO.read_bytes())
    check_shape(make_tokenizer(tmp_path).path.read_bytes())
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    }
    llama_2 = [
        {"type": "Prepend", "prepend": MARK},
        {"type": "Replace", "pattern": {"String": " "}, "content": MARK},
    ]
    gpt_2: dict[str, Any] = {"continuing_subword_prefix": "", "end_of_word_suffix": "", "merges": []}
    bert = {"unk_token": "?", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": {}}
    spaces = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}
    check_shape(shaped(normalizer={"type": "Sequence", "normalizers": llama_2}, post_processor=template))
    check_shape(shaped(normalizer=llama_2[1], pre_tokenizer=spaces))  # Gemma's
    check_shape(shaped(model=gpt_2, pre_tokenizer={"type": "ByteLevel"}))
    for model in (bert, bert | {"type": "WordPiece"}):
        check_shape(
            shaped(model=model, normalizer={"type": "BertNormalizer"}, pre_tokenizer={"type": "BertPreTokenizer"})
        )


@pytest.mark.parametrize("model", PATTERNS)
def test_a_known_pattern_passes_over_any_text_once(model: str) -> None:
    """Branches alone may read it again from each of its characters on."""
    content = shaped(
        pre_tokenizer=in_sequence(split(PATTERNS[model])),
        model={"type": "BPE", "vocab": {"a": 0}, "merges": []},
        added_tokens=[],
    )
    counting = Counting(TokenCounter(Tokenizer.from_buffer(check_shape(content)), "0" * 64))
    for text in ("A", "a", " ", "\n ", "\u0301", "!", "'s", "1", "A\u0301"):
        segment = (text * SEGMENT_CHARS)[:SEGMENT_CHARS]
        assert counting.text_tokens(segment) == segment.count("a"), text


BOMB = {"type": "Replace", "pattern": {"String": "x"}, "content": "x" * 1000}
SEQUENCE = {"Sequence": {"id": "A", "type_id": 0}}
HOSTILE: dict[str, dict[str, Any]] = {
    "normalizer.0": {"normalizer": BOMB},
    "normalizer.1": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, BOMB]}},
    "normalizers": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 17}},
    "pre_tokenizer.0": {"pre_tokenizer": split("a*a{0,100}b")},
    "pre_tokenizer": {"normalizer": BYTE_LEVEL, "pre_tokenizer": BYTE_LEVEL},
    "post_processor.0": {"post_processor": {"type": "TemplateProcessing", "single": [SEQUENCE] * 2}},
    "model": {"model": {"type": "Program"}},
    "model.max_input_chars_per_word": {"model": {"type": "WordPiece", "max_input_chars_per_word": 999}},
    "model.vocab": {"model": {"type": "Unigram", "vocab": [["a" * 65, 0.0]]}},
    "model.dropout": {"model": {"type": "BPE", "dropout": 0.5}},
    "model.continuing_subword_prefix": {"model": {"merges": [], "continuing_subword_prefix": "z"}},
    "model.end_of_word_suffix": {"model": {"type": "BPE", "end_of_word_suffix": "</w>"}},
}


@pytest.mark.parametrize("part", HOSTILE)
def test_programs_are_refused_by_the_name_of_their_part(part: str) -> None:
    with pytest.raises(TokenizerRefused) as refused:
        check_shape(shaped(**HOSTILE[part]))
    assert refused.value.part == part


@pytest.mark.parametrize("pattern", [f"{LLAMA_3}|(a+)+b", "(\\s+(?!\\S))*", UPPER_FIRST, r"\s*[\r\n]+", "\\s+|"])
def test_what_is_no_whole_pattern_of_a_known_model_is_refused(pattern: str) -> None:
    with pytest.raises(TokenizerRefused):
        check_shape(shaped(pre_tokenizer=in_sequence(split(pattern))))


def test_the_library_gets_what_was_looked_at() -> None:
    """Of a name that is there twice, readers take the first or the last as they please."""
    twice = shaped(model={"type": "BPE", "dropout": None}).replace(
        b'"dropout": null', b'"dropout":1,"dropout":null'
    )
    hidden = shaped(decoder={"type": "Replace", "pattern": {"Regex": "(a+)+b"}, "content": ""})
    assert b"1" not in check_shape(twice)
    assert b"Replace" not in check_shape(hidden)


def test_what_is_nested_in_place_of_a_part_is_refused() -> None:
    inner = {"type": "Sequence", "normalizers": [BOMB]}
    odd = shaped(normalizer={"type": []}), shaped(model={"type": {}}), shaped(pre_tokenizer=split([]))  # type: ignore[arg-type]
    nested = shaped(normalizer={"type": "Sequence", "normalizers": [inner]})
    for content in (*odd, nested, b"[]", b"{", b"[" * 10**5):
        with pytest.raises(TokenizerRefused):
            check_shape(content)


def test_no_byte_is_more_than_a_token() -> None:
    """Whatever a tokenizer makes of a text, buyer, seller and marketplace count no more of it than there is."""
    tokenizer = Tokenizer(models.WordLevel({"w": 0, "?": 1}, unk_token="?"))
    tokenizer.normalizer = normalizers.Replace("!", "w " * 1000)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    counting = Counting(TokenCounter(tokenizer, "0" * 64))
    assert counting.delivered([Delivered("Hi!")]).completion_tokens == 3
    assert counting.text_tokens("") == 0
