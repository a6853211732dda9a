"""Conversion between text and tokens: tokenizer, incremental detokenizer, stop strings."""

import re
import sys
from pathlib import Path

from tokenizers import Tokenizer

from cluster.errors import ContextLengthExceeded, ModelInvalid, RequestInvalid
from cluster.generation import ChatPrompt, Prompt, TextPrompt
from cluster.models.chat_format import ChatFormat
from cluster.models.chat_template import read_folder_template
from cluster.models.end_tokens import find_end_tokens
from cluster.models.tool_calls.markers import Window

# A character has at most four bytes: if this many tokens complete none, the bytes are not UTF-8.
_PATIENCE_TOKENS = 8
_CONTEXT_TOKENS = 5
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# How vocabularies write non-text: SentencePiece a space and single bytes, byte-level BPE every byte.
_SPACE_MARK = "\u2581"
_BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")


def _byte_letters() -> dict[str, int]:
    """Return the alphabet of byte-level BPE: printable Latin-1 stands for itself, the rest for U+0100 and on."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + at): byte for at, byte in enumerate(others)}


_BYTE_LETTERS = _byte_letters()


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read a model's tokenizer.json. Raise ModelInvalid if it cannot be read."""
    try:
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise ModelInvalid(f"{folder / 'tokenizer.json'}: {error}") from None


class TextCodec:
    """A model's tokenizer with its chat template and end tokens, from the model's small files."""

    def __init__(self, folder: Path) -> None:
        """Read the files. Raise ModelInvalid if one cannot be read."""
        self.tokenizer = read_tokenizer(folder)
        self._template = read_folder_template(folder)
        self.end_token_ids = find_end_tokens(folder, self.tokenizer.token_to_id)
        vocabulary = self.tokenizer.get_vocab(with_added_tokens=True)
        self.token_bytes_max = max((len(token.encode()) for token in vocabulary), default=1)
        # Special tokens that tell the parts of a chat's answer apart.
        self.markers = {vocabulary[mark]: mark for mark in self.format.markers if mark in vocabulary}

    @property
    def format(self) -> ChatFormat:
        """How the model writes thoughts and tool calls."""
        return self._template.format if self._template else ChatFormat()

    def encode(self, prompt: Prompt, tokens_max: int = sys.maxsize) -> list[int]:
        """Return the token ids of a prompt. Raise RequestInvalid, naming the field.

        Raise ContextLengthExceeded, before any work, for a text that must exceed `tokens_max` tokens.
        """
        match prompt:
            case ChatPrompt():
                return self.encode_text(self.render(prompt), tokens_max)
            case TextPrompt(text):
                return self._tokenize(text, tokens_max, special=True)
            case _:
                size = self.tokenizer.get_vocab_size()
                wrong = next((token for token in prompt.token_ids if not 0 <= token < size), None)
                if wrong is not None:
                    raise RequestInvalid(f"token {wrong} is outside the vocabulary of {size} tokens", "prompt")
                return list(prompt.token_ids)

    def encode_text(self, rendered: str, tokens_max: int = sys.maxsize) -> list[int]:
        """Return the token ids of a conversation that `render` has written. Raise ContextLengthExceeded."""
        return self._tokenize(rendered, tokens_max, special=False)

    def _tokenize(self, text: str, tokens_max: int, *, special: bool) -> list[int]:
        least = len(text.encode("utf-8", "replace")) // self.token_bytes_max
        if least > tokens_max:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {tokens_max} tokens. Your prompt has at least {least}. "
                "Shorten it.",
                "messages",
            )
        return self.tokenizer.encode(text, add_special_tokens=special).ids

    def render(self, prompt: ChatPrompt) -> str:
        """Return the conversation in the model's own format, ready for the assistant's turn.

        Raise RequestInvalid.
        """
        if self._template is None:
            raise RequestInvalid("this model has no chat template. Use /v1/completions.", "messages")
        return self._template.render(prompt)

    def special_ids(self) -> dict[str, int]:
        """Return the special tokens, which no plain text can contain."""
        added = self.tokenizer.get_added_tokens_decoder()
        return {token.content: token_id for token_id, token in added.items() if token.special}

    def decode(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)

    def token_bytes(self, token_id: int) -> bytes:
        """Return one token by itself in UTF-8, special ones included; it may be only a part of a character."""
        piece = self.tokenizer.id_to_token(token_id) or ""
        if piece.startswith(_SPACE_MARK):  # By itself it would lose the space that it stands for.
            return piece.replace(_SPACE_MARK, " ").encode()
        text = self.tokenizer.decode([token_id], skip_special_tokens=False)
        if _REPLACEMENT not in text:
            return text.encode()
        if byte := _BYTE_PIECE.fullmatch(piece):
            return bytes.fromhex(byte[1])
        if all(letter in _BYTE_LETTERS for letter in piece):
            return bytes(_BYTE_LETTERS[letter] for letter in piece)
        return text.encode()


class Detokenizer:
    """Turns tokens into text as they arrive, and holds back incomplete characters.

    Decoding starts a few tokens back, because a token's text (a leading space, for example) can depend on the ones
    before it. It starts where text was settled before, because a character begins there. With `shows_markers` the
    special tokens that mark parts of a chat's answer are text, too.
    """

    def __init__(self, codec: TextCodec, prompt: list[int], *, shows_markers: bool = False) -> None:
        self.codec = codec
        self._markers = codec.markers if shows_markers else {}
        self._ids = prompt[-_CONTEXT_TOKENS:]
        self._before = len(self._ids)
        # A prompt may end within a character that the first tokens complete.
        self._settled = codec.decode(self._ids).rstrip(_REPLACEMENT)
        self._pending = 0

    def push(self, token_id: int) -> str:
        """Take the next token. Return the text that is certain."""
        if token_id in self._markers:
            return self._restart(self._markers[token_id])
        self._ids.append(token_id)
        self._pending += 1
        text = self.codec.decode(self._ids)
        if text.endswith(_REPLACEMENT) and self._pending < _PATIENCE_TOKENS:
            return ""
        return self._settle(text)

    def flush(self) -> str:
        """Return the text that was held back, readable or not."""
        return self._settle(self.codec.decode(self._ids)) if self._pending else ""

    def _restart(self, marker: str) -> str:
        """Restart the context at a marker: tokens before it do not change how later ones read."""
        before = self.flush()
        self._ids, self._before, self._settled = [], 0, ""
        return before + marker

    def _settle(self, text: str) -> str:
        fresh = text[len(self._settled) :]
        self._ids = self._ids[self._before :]
        self._before = len(self._ids)
        self._settled = self.codec.decode(self._ids)
        self._pending = 0
        return fresh


class StopMatcher:
    """Finds stop strings in text that arrives in pieces, and holds back what may become one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._window = Window()

    def push(self, text: str) -> tuple[str, bool]:
        """Return the text that is certain, and whether a stop string ended it. The stop string is cut off."""
        if not self._stops:
            return text, False
        self._window.push(text)
        certain, stop = self._window.take_until(*self._stops)
        return certain, bool(stop)

    def flush(self) -> str:
        return self._window.take_all()
