"""Which tokenizers of strangers are counted with: of shapes that neither blow texts up nor take long over them.

A tokenizer.json is a program of a kind: its normalizers may put a thousand characters in the place of one, and its
patterns may take a time that grows with the square of a text, in a library that nothing can interrupt. So its
parts have to be among those that models' tokenizers are made of, and its patterns whole ones of known models.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from market.counting.patterns import KNOWN
from market.errors import TokenizerRefused

PARTS_MAX = 16
"""Of a sequence of normalizers, pre-tokenizers or post-processors."""
WORD_CHARS_MAX = 100
"""A WordPiece model takes time by the cube of it."""
TOKEN_CHARS_MAX = 64
"""The longest token of a Unigram model: a text is compared with it at each of its characters."""

# Old files do not say: their model is a BPE where that can be, and whatever fits them otherwise.
_MODELS = frozenset((None, "BPE", "WordPiece", "Unigram", "WordLevel"))
_NORMALIZERS = frozenset(
    ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Nmt", "ByteLevel", "BertNormalizer")
)
_PRE_TOKENIZERS = frozenset(
    (
        "ByteLevel",
        "Whitespace",
        "WhitespaceSplit",
        "BertPreTokenizer",
        "Metaspace",
        "Digits",
        "Punctuation",
        "UnicodeScripts",
        "CharDelimiterSplit",
    )
)
_UNDERSCORE = "\u2581"
# Each puts something in front of what it is given, or two characters in the place of one, whenever it is run.
_ONCE = frozenset(("ByteLevel", "Metaspace", "Prepend", "BertNormalizer"))
_POST_PROCESSORS = frozenset(("ByteLevel", "BertProcessing", "RobertaProcessing", "TemplateProcessing"))


def check_shape(content: bytes) -> bytes:
    """Look at a tokenizer.json before any library does; returns what it may be given, which counts alike.

    That is the file written anew: what has a name twice is in it once, as it was looked at. What counting has no
    use for is left out.

    Raises:
        TokenizerRefused: it is none, or has a part that is not known to be harmless; the error names it.
    """
    try:
        told = msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise TokenizerRefused("", "is no JSON") from None
    if not isinstance(told, dict):
        raise TokenizerRefused("", "is no JSON object")
    _check_model(told.get("model"))
    normalizers = [*_parts(told.get("normalizer"), "normalizers")]
    pre_tokenizers = [*_parts(told.get("pre_tokenizer"), "pretokenizers")]
    for number, part in enumerate(normalizers):
        _check_normalizer(part, f"normalizer.{number}")
    for number, part in enumerate(pre_tokenizers):
        _check_pre_tokenizer(part, f"pre_tokenizer.{number}")
    kinds = Counter(part.get("type") for part in (*normalizers, *pre_tokenizers))
    if twice := sorted(kind for kind in _ONCE if kinds[kind] > 1):
        raise TokenizerRefused("pre_tokenizer", f"has more than one {twice[0]}, with what normalizes")
    for number, part in enumerate(_parts(told.get("post_processor"), "processors")):
        _check_post_processor(part, f"post_processor.{number}")
    return msgspec.json.encode(told | {"decoder": None, "truncation": None, "padding": None})


def _check_model(model: Any) -> None:
    if not isinstance(model, dict) or not _is_in(_MODELS, model.get("type")):
        raise TokenizerRefused("model", "is of a kind that is not known")
    if model.get("dropout"):
        raise TokenizerRefused("model.dropout", "makes the same text come to another count each time")
    longest = model.get("max_input_chars_per_word", WORD_CHARS_MAX)
    if type(longest) is not int or not 0 < longest <= WORD_CHARS_MAX:
        raise TokenizerRefused("model.max_input_chars_per_word", f"is not within {WORD_CHARS_MAX}")
    if any(len(token) > TOKEN_CHARS_MAX for token in _pieces(model.get("vocab"))):
        raise TokenizerRefused("model.vocab", f"has a token of more than {TOKEN_CHARS_MAX} characters")
    if model.get("type") == "BPE" or "merges" in model:
        for name in ("continuing_subword_prefix", "end_of_word_suffix"):
            # The library cuts merges by its length, through the middle of a character.
            if model.get(name):
                raise TokenizerRefused(f"model.{name}", "is not known of any model that is sold")


def _pieces(vocabulary: Any) -> Iterator[str]:
    for entry in vocabulary if isinstance(vocabulary, list) else ():
        if isinstance(entry, list) and entry and isinstance(entry[0], str):
            yield entry[0]


def _parts(part: Any, members: str) -> Iterator[dict[str, Any]]:
    """The parts of a sequence, or the one part that there is. One sequence within another is none."""
    if part is None:
        return
    listed = part.get(members) if isinstance(part, dict) and part.get("type") == "Sequence" else [part]
    if (
        not isinstance(listed, list)
        or len(listed) > PARTS_MAX
        or not all(isinstance(each, dict) and isinstance(each.get("type"), str) for each in listed)
    ):
        raise TokenizerRefused(members, f"are not at most {PARTS_MAX} parts")
    yield from listed


def _check_normalizer(part: dict[str, Any], field: str) -> None:
    kind, content = part.get("type"), part.get("content")
    if kind in _NORMALIZERS:
        return
    is_space = kind == "Prepend" and part.get("prepend") == _UNDERSCORE
    if kind == "Replace":
        is_space = part.get("pattern") == {"String": " "} and content == _UNDERSCORE
    if not is_space:
        raise TokenizerRefused(field, f"is a {str(kind)[:40]} that may put anything in the place of a text")


def _check_pre_tokenizer(part: dict[str, Any], field: str) -> None:
    kind = part.get("type")
    if kind in _PRE_TOKENIZERS:
        return
    pattern = part.get("pattern") if kind == "Split" else None
    if not isinstance(pattern, dict) or len(pattern) != 1:
        raise TokenizerRefused(field, "is of a kind that is not known")
    ((form, text),) = pattern.items()
    if form == "String" and isinstance(text, str) and 0 < len(text) <= PARTS_MAX:
        return
    if form != "Regex" or not _is_in(KNOWN, text):
        raise TokenizerRefused(field, "has a pattern that is not a known model's")


def _check_post_processor(part: dict[str, Any], field: str) -> None:
    kind, single = part.get("type"), part.get("single")
    if kind not in _POST_PROCESSORS:
        raise TokenizerRefused(field, "is of a kind that is not known")
    # In a template the text may stand as often as one likes, and each time counts.
    if kind == "TemplateProcessing":
        pieces = single if isinstance(single, list) else [None, None]
        if sum(not isinstance(each, dict) or "SpecialToken" not in each for each in pieces) > 1:
            raise TokenizerRefused(field, "has the text more than once")


def _is_in(known: frozenset[Any], told: Any) -> bool:
    return (told is None or isinstance(told, str)) and told in known
