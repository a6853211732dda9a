"""Tokens back to text: in pieces as in one go, never half a character, stop strings never leak."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from cluster.errors import ContextLengthExceeded, RequestInvalid
from cluster.generation import ChatPrompt, TextPrompt, TokenPrompt
from cluster.models.text import Detokenizer, StopMatcher, TextCodec
from tests.clusters import DEMO_MODEL


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return TextCodec(DEMO_MODEL)


@pytest.fixture(scope="module")
def byte_codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    """A vocabulary of "a" and single bytes, as in SentencePiece models with byte fallback."""
    vocabulary = {"<unk>": 0, "a": 1} | {f"<0x{byte:02X}>": byte + 2 for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    folder = tmp_path_factory.mktemp("bytes")
    tokenizer.save(str(folder / "tokenizer.json"))
    return TextCodec(folder)


@given(text=st.text(max_size=200), prompt=st.text(max_size=20))
def test_pieces_make_the_whole(codec: TextCodec, text: str, prompt: str) -> None:
    ids = codec.tokenizer.encode(text, add_special_tokens=False).ids
    detokenizer = Detokenizer(codec, codec.tokenizer.encode(prompt, add_special_tokens=False).ids)
    pieces = [detokenizer.push(token) for token in ids]
    assert "".join(pieces) + detokenizer.flush() == codec.decode(ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@given(text=st.text("aé€😀 ", max_size=40))
def test_tokens_of_single_bytes_make_whole_characters(byte_codec: TextCodec, text: str) -> None:
    """Tokenizers of the Llama 2 kind fall back to bytes: a character is spread over up to four tokens."""
    ids = byte_codec.tokenizer.encode(text, add_special_tokens=False).ids
    detokenizer = Detokenizer(byte_codec, [])
    pieces = [detokenizer.push(token) for token in ids]
    assert "".join(pieces) + detokenizer.flush() == text
    assert not any("\ufffd" in piece for piece in pieces)


@given(text=st.text("aé€😀 ", max_size=20))
def test_the_bytes_of_tokens_make_the_text(codec: TextCodec, byte_codec: TextCodec, text: str) -> None:
    for some in (codec, byte_codec):
        ids = some.tokenizer.encode(text, add_special_tokens=False).ids
        if some is codec or " " not in text:
            assert b"".join(some.token_bytes(token) for token in ids).decode() == text


def test_a_template_that_fails_is_the_requests_fault(tmp_path: Path) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(DEMO_MODEL / file, tmp_path / file)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content + 1 }}")
    with pytest.raises(RequestInvalid, match="cannot render") as refused:
        TextCodec(tmp_path).encode(ChatPrompt([{"role": "user", "content": "hello"}]))
    assert refused.value.param == "messages"


def test_a_prompt_far_too_long_is_not_even_encoded(codec: TextCodec) -> None:
    with pytest.raises(ContextLengthExceeded, match="has at least"):
        codec.encode(TextPrompt("x" * 10_000_000), tokens_max=1024)


@given(
    pieces=st.lists(st.text("ab<>", max_size=4), max_size=20),
    stops=st.lists(st.text("ab<>", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_are_found_across_pieces(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)
    ends = [at for stop in stops if (at := whole.find(stop)) >= 0]
    matcher, got, stopped = StopMatcher(tuple(stops)), "", False
    for piece in pieces:
        text, stopped = matcher.push(piece)
        got += text
        if stopped:
            break
    if not stopped:
        got += matcher.flush()
    assert stopped == bool(ends)
    if not ends:
        assert got == whole
    else:
        # The first completed stop string ends the text. It may begin after the beginning of a longer one.
        assert whole.startswith(got)
        assert not any(stop in got for stop in stops)


def test_chat_template_is_that_of_transformers(codec: TextCodec) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(DEMO_MODEL)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello <b> & é 世界"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "And?"},
    ]
    expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert codec.render(ChatPrompt(messages)) == expected
    ids = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert codec.encode(ChatPrompt(messages)) == ids


def test_end_tokens_come_from_every_file_that_names_them(codec: TextCodec) -> None:
    named = json.loads((DEMO_MODEL / "generation_config.json").read_text())["eos_token_id"]
    assert codec.end_token_ids >= set(named if isinstance(named, list) else [named])


def test_prompts_of_all_kinds(codec: TextCodec) -> None:
    ids = codec.encode(TextPrompt("a river"))
    assert codec.encode(TokenPrompt(ids)) == ids
    with pytest.raises(RequestInvalid, match="outside the vocabulary") as caught:
        codec.encode(TokenPrompt([5, 10**9]))
    assert caught.value.param == "prompt"


def test_a_template_may_refuse_and_is_sandboxed(tmp_path: Path) -> None:
    for file in DEMO_MODEL.iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    template = tmp_path / "chat_template.jinja"
    template.write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RequestInvalid, match="roles must alternate"):
        TextCodec(tmp_path).render(ChatPrompt([{"role": "user", "content": "x"}]))
    template.write_text("{{ ''.__class__.__mro__ }}")
    with pytest.raises(RequestInvalid):
        TextCodec(tmp_path).render(ChatPrompt([{"role": "user", "content": "x"}]))
