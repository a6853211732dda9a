"""Counting: it depends on the text alone, all parties get the same, and padding is counted but detected."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.metering.delivered import SEGMENT_CHARS, Called, Delivered, TokenCounter
from accounting.metering.tokenizers import Pinned, load_counter
from market.errors import RequestNotCounted, StatementInvalid
from market.protocol.counting.answer import CALLS_MAX, CHARS_MAX, CHOICES_MAX, AnswerSoFar, transcript_of
from market.protocol.counting.padding_flags import padding_flags
from market.protocol.counting.token_count import Counting
from tests.accounting.tokenizer import pinned
from tests.examples import examples
from tests.market.texts import ROOT, honest_texts
from tests.market.trade import DIGEST

pieces = st.lists(st.text(st.characters(codec=None), max_size=12), max_size=8)


@pytest.fixture(scope="module")
def tokenizer() -> Pinned:
    return pinned(ROOT / "demo/model/tokenizer.json")


@pytest.fixture(scope="module")
def counter(tokenizer: Pinned) -> TokenCounter:
    return load_counter(tokenizer)


def choice(index: int, **delta: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": index, "delta": delta}]}


def call(number: int, **function: str) -> list[dict[str, Any]]:
    return [{"index": number, "function": function}]


def answered(chunks: list[dict[str, Any]]) -> AnswerSoFar:
    answer = AnswerSoFar(DIGEST)
    for chunk in chunks:
        answer.add(chunk)
    return answer


@st.composite
def cut_answers(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Chunks of an answer, and the same answer cut and ordered otherwise: each text by itself keeps its order."""
    texts = {
        (index, kind): "".join(draw(pieces))
        for index in range(draw(st.integers(1, 2)))
        for kind in ("content", "reasoning_content", "arguments")
    }

    def cut() -> list[dict[str, Any]]:
        queues = []
        for (index, kind), text in texts.items():
            size = draw(st.integers(1, 7))
            parts = [text[start : start + size] for start in range(0, len(text), size)]
            is_call = kind == "arguments"
            queues.append(
                [
                    choice(index, tool_calls=call(0, arguments=p)) if is_call else choice(index, **{kind: p})
                    for p in parts
                ]
            )
        order = [number for number, queue in enumerate(queues) for _ in queue]
        return [queues[number].pop(0) for number in draw(st.permutations(order))]

    return cut(), cut()


@settings(max_examples=examples(20, 60))
@given(cut_answers())
def test_count_and_hash_rest_on_the_text_however_it_was_cut(
    counter: TokenCounter, cuts: tuple[list[dict[str, Any]], list[dict[str, Any]]]
) -> None:
    seller, buyer = map(answered, cuts)
    assert seller.transcript() == buyer.transcript()
    for each in (counter, None):
        assert Counting(each).delivered(seller.choices()) == Counting(each).delivered(buyer.choices())
    # The marketplace has the texts alone, as JSON brings them.
    texts = json.loads(json.dumps([[i, d.content, d.reasoning, d.calls] for i, d in buyer.by_index().items()]))
    marketplace = {
        i: Delivered(content, reasoning, tuple(Called(*each) for each in calls))
        for i, content, reasoning, calls in texts
    }
    assert transcript_of(DIGEST, marketplace) == buyer.transcript()
    assert Counting(counter).delivered(marketplace.values()) == Counting(counter).delivered(buyer.choices())


def test_chunks_of_every_shape_come_together() -> None:
    chunks = [
        choice(0, role="assistant"),
        choice(1, content="one "),
        choice(0, content="\ud83c"),
        choice(0, content="\udf3e", reasoning="hm", reasoning_content="hm"),
        choice(0, tool_calls=[*call(1, name="grind"), *call(0, name="mill", arguments='{"a":')]),
        choice(0, tool_calls=[*call(0, arguments="1}"), *call(1, arguments="{}")]),
        {"choices": [{"index": 1, "text": "more", "finish_reason": "stop"}, "odd", {"index": 0, "delta": 5}]},
        {"choices": None, "usage": {"completion_tokens": 10**9}},
    ]
    answer = answered(chunks)
    calls = Called("mill", '{"a":1}'), Called("grind", "{}")
    assert answer.choices() == (Delivered("🌾", "hm", calls), Delivered("one more"))
    assert answer.finish_reasons == {1: "stop"}
    # The order of calls and what is in which of them is part of the hash.
    other = {0: Delivered("🌾", "hm", calls[::-1]), 1: Delivered("one more")}
    assert transcript_of(DIGEST, other) != answer.transcript()


@pytest.mark.parametrize(
    "chunk",
    [
        choice(CHOICES_MAX, content="x"),
        choice(-1, content="x"),
        choice(0, tool_calls=call(CALLS_MAX, name="x")),
        choice(0, content="x" * (CHARS_MAX + 1)),
    ],
)
def test_an_answer_without_bounds_is_none(chunk: dict[str, Any]) -> None:
    with pytest.raises(StatementInvalid):
        AnswerSoFar(DIGEST).add(chunk)


def test_a_thousand_small_pieces_cost_what_one_does() -> None:
    answer = answered([choice(0, content="x")] * 10_000)
    assert answer.choices() == (Delivered("x" * 10_000),)
    assert answer.chars == 10_000


def test_a_prompt_is_its_texts_and_nothing_of_its_seller(counter: TokenCounter) -> None:
    tool = {"type": "function", "function": {"name": "grind", "parameters": {"b": 1, "a": 2}}}
    request = {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "the mill"}, {"type": "text", "text": "grinds"}],
            },
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "grind", "arguments": "{}"}}]},
        ],
        "tools": [tool],
    }
    shown = '{"function":{"name":"grind","parameters":{"a":2,"b":1}},"type":"function"}'
    texts = counter.count(["the mill", "grinds", "grind", "{}", shown])
    assert Counting(counter).prompt_tokens(request) == texts + 2 * 4 + 3
    assert Counting(None).prompt_tokens({"prompt": ["the mill", "grinds"]}) == -(-14 // 4) + 3
    assert Counting(counter).prompt_tokens({"prompt": [1, 2, 3]}) == 6
    assert Counting(counter).prompt_tokens({"prompt": [[1, 2], [3]]}) == 6
    picture = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}
    with pytest.raises(RequestNotCounted, match=r"messages\[0\].content\[0\] is image_url"):
        Counting(counter).prompt_tokens(picture)


def test_a_text_that_grows_is_counted_as_if_it_had_come_at_once(counter: TokenCounter) -> None:
    counting = Counting(counter)
    remembering, grown = counting.remembering(), ""
    for _ in range(9):
        grown += TALE * (SEGMENT_CHARS // len(TALE) // 4)
        choice = (Delivered(grown, reasoning="é" + grown),)
        assert remembering.delivered(choice) == counting.delivered(choice)
    assert len(grown) > 2 * SEGMENT_CHARS


def test_no_byte_is_more_than_a_token(tokenizer: Pinned, tmp_path: Path) -> None:
    """So what is counted by bytes pays at least a quarter of any tokenizer's count."""
    content = json.loads(tokenizer.path.read_bytes())
    content["normalizer"] = {"type": "Replace", "pattern": {"String": "x"}, "content": "x y" * 1000}
    (tmp_path / "large.json").write_text(json.dumps(content))
    counting = Counting(load_counter(pinned(tmp_path / "large.json")))
    assert (counting.text_tokens("xxxx"), Counting(None).text_tokens("xxxx")) == (4, 1)
    assert counting.delivered([Delivered("xé")]).completion_tokens == 3


class Choking:
    """A tokenizer that fails at a text, as the library's sometimes do."""

    def no_truncation(self) -> None: ...
    def no_padding(self) -> None: ...
    def encode(self, text: str, add_special_tokens: bool) -> None:
        raise ValueError(text)


def test_a_text_that_no_tokenizer_takes_is_counted_by_its_bytes_by_everybody() -> None:
    choking = Counting(TokenCounter(Choking(), DIGEST))  # type: ignore[arg-type]
    texts = (Delivered("the mill"),)
    assert choking.delivered(texts) == Counting(None).delivered(texts)
    assert choking.prompt_tokens({"prompt": "the mill"}) == Counting(None).prompt_tokens({"prompt": "the mill"})


TALE = next(honest_texts(1, 1))
PADDED = {
    "invisible": "\u200b".join(TALE),
    "of two kinds": "\u200c\u2060".join(TALE),
    "tags": TALE + "".join(chr(0xE0000 + n % 90 + 33) for n in range(len(TALE))),
    "filler": TALE + "\u3164" * len(TALE),
    "blank": TALE + "\n \t" * 4 * len(TALE),
    "spaces": TALE + "\u00a0\u2003" * 4 * len(TALE),
    "loop": TALE + "the mill grinds and " * 500,
    "letter": TALE + "a" * 4_000,
}


@pytest.mark.parametrize("kind", PADDED)
def test_padding_is_counted_and_seen(counter: TokenCounter, kind: str) -> None:
    assert padding_flags(PADDED[kind])
    counts = Counting(counter).delivered([Delivered(PADDED[kind])])
    assert counts.content_tokens > Counting(counter).delivered([Delivered(TALE)]).content_tokens
    assert counts.content_tokens == counter.count([PADDED[kind]])


def flagged(count: int) -> Counter[str]:
    return Counter(flag for text in honest_texts(7, count) for flag in padding_flags(text))


def test_honest_texts_are_not_flagged() -> None:
    assert flagged(280) == Counter()


@pytest.mark.slow
def test_of_ten_thousand_honest_texts_hardly_one_is_flagged() -> None:
    assert flagged(10_000).total() <= 5
