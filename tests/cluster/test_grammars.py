"""Grammars during sampling: no forbidden token is drawn, and drafts change nothing."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from cluster.compute.grammars import Grammars
from cluster.compute.sampler import Draw, Sampler
from cluster.generation import CallSchema, Constraint, Sampling
from cluster.models.chat_format import ChatFormat
from cluster.models.grammar_check import check_grammar
from cluster.models.text import TextCodec
from cluster.models.tool_calls.forms import FORMS
from cluster.models.tool_calls.grammar import write_grammar
from tests.clusters import DEMO_MODEL
from tests.examples import examples

CODEC = TextCodec(DEMO_MODEL)
VOCABULARY = CODEC.tokenizer.get_vocab_size()
# Padding rows, as in real models: the tokenizer has no tokens for them.
PADDED = VOCABULARY + 37

SCHEMAS: list[dict[str, Any]] = [
    {"enum": ["rain", "sun", None, 12, [1, 2]]},
    {"type": "array", "items": {"type": "integer", "minimum": -3, "maximum": 40}, "minItems": 1, "maxItems": 4},
    {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 5}, "b": {"type": "boolean"}},
        "required": ["b"],
        "additionalProperties": False,
    },
]


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(DEMO_MODEL, PADDED)


def lark(schema: dict[str, Any]) -> str:
    grammar = write_grammar(Constraint(schema=schema, is_strict=True), ChatFormat(), CODEC.special_ids(), "never")
    check_grammar(grammar)
    return grammar.lark


def drawn(
    grammars: Grammars,
    grammar: str,
    sampling: Sampling,
    seed: int,
    guesses: list[list[int]],
    cut: int,
    device: torch.device,
) -> list[int]:
    """Return the tokens drawn from random logits with these drafts. After `cut` tokens another stage continues."""
    sampler, output = Sampler(PADDED, grammars), list[int]()
    sampler.open(0, sampling, [], 0, grammar)
    while len(output) < 120:
        if len(output) >= cut:
            sampler, cut = Sampler(PADDED, grammars), 1000
            sampler.open(0, sampling, output, 0, grammar)
        drafts = tuple(guesses[len(output) % len(guesses)]) if guesses else ()
        # Logits depend only on the position, as a model's depend on the text so far.
        rows = [logits(seed, len(output) + at) for at in range(1 + len(drafts))]
        for token in sampler.sample(torch.stack(rows).to(device), [Draw(0, len(output), drafts)])[0]:
            assert not token.problem
            output.append(token.token_id)
            if token.token_id in CODEC.end_token_ids:
                return output
    return output


def logits(seed: int, position: int) -> torch.Tensor:
    return torch.randn(PADDED, generator=torch.Generator().manual_seed(1000 * seed + position)) * 4


@settings(max_examples=examples(15, 40), deadline=None)
@given(
    schema=st.sampled_from(SCHEMAS),
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.0, 1.0, 2.0]),
    guesses=st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=4), max_size=4),
    cut=st.integers(1, 30),
)
def test_every_drawn_text_follows_the_schema(
    grammars: Grammars,
    schema: dict[str, Any],
    seed: int,
    temperature: float,
    guesses: list[list[int]],
    cut: int,
    device: torch.device,
) -> None:
    sampling = Sampling(temperature=temperature, seed=seed + 1, logit_bias={5: 50.0}, top_p=0.95)
    plain = drawn(grammars, lark(schema), sampling, seed, [], 1000, device)
    assert plain[-1] in CODEC.end_token_ids, CODEC.decode(plain)
    Draft202012Validator(schema).validate(json.loads(CODEC.decode(plain)))
    right = [plain[at : at + 3] for at in range(len(plain))]
    assert drawn(grammars, lark(schema), sampling, seed, guesses, cut, device) == plain
    assert drawn(grammars, lark(schema), sampling, seed, right, cut, device) == plain


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("thinking", ["never", "perhaps", "begun"])
def test_calls_are_written_as_the_model_was_taught(grammars: Grammars, name: Any, thinking: Any) -> None:
    """Each format's own form of a call is allowed, and calls of unknown functions are not."""
    city: dict[str, Any] = {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/city"}},
        "required": ["city"],
    }
    city |= {"$defs": {"city": {"enum": ["Rome", "Oslo"]}}, "additionalProperties": False}
    constraint = Constraint(
        calls=(CallSchema("weather", city, is_strict=True), CallSchema("noon", {"type": "object"}))
    )
    form = ChatFormat(name, None if name == "harmony" else ("<think>", "</think>"))
    grammar = write_grammar(constraint, form, CODEC.special_ids(), thinking)
    check_grammar(grammar)
    shape = FORMS[name]
    marks = form.thought or ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant")
    thought = {"never": "", "perhaps": f"{marks[0]}so <b>{marks[1]}", "begun": f"so{marks[1]}"}[thinking]
    calls = [shape.head_of("weather") + '{"city": "Oslo"}' + shape.tail]
    if shape.separator is not None:
        calls.append(shape.head_of("noon") + "{}" + shape.tail)
    said = thought + shape.begin + (shape.separator or "").join(calls) + shape.end
    assert follows(grammars, grammar.lark, said)
    assert not follows(grammars, grammar.lark, said.replace("Oslo", "Bonn"))
    assert not follows(grammars, grammar.lark, said.replace("weather", "whether"))
    assert not follows(grammars, grammar.lark, "Of course!")


def follows(grammars: Grammars, grammar: str, text: str) -> bool:
    matcher = grammars.begin(grammar, CODEC.tokenizer.encode(text, add_special_tokens=False).ids)
    allowed = matcher.allowed()
    return allowed is not None and not CODEC.end_token_ids.isdisjoint(allowed.tolist())
