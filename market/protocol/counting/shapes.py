"""Decide which third-party tokenizers are accepted: those that neither blow texts up nor take long.

A tokenizer.json is a kind of program. Its normalizers may turn one character into a thousand. Its patterns may
take quadratic time, in a library that cannot be interrupted. So its parts must be among those of models'
tokenizers, and its patterns must be whole ones of known models.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from market.errors import TokenizerRefused
from market.protocol.counting.patterns import KNOWN

PARTS_MAX = 16
"""Most normalizers, pre-tokenizers or post-processors in a sequence."""
WORD_CHARS_MAX = 100
"""Longest word of a WordPiece model, which takes cubic time in it."""
TOKEN_CHARS_MAX = 64
"""Longest token of a Unigram model, which compares it with a text at each character."""

# Old files do not name a type: their model is a BPE if possible, or whatever else fits.
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
# Each of these adds a prefix, or turns one character into two, whenever it runs.
_ONCE = frozenset(("ByteLevel", "Metaspace", "Prepend", "BertNormalizer"))
_POST_PROCESSORS = frozenset(("ByteLevel", "BertProcessing", "RobertaProcessing", "TemplateProcessing"))


def check_shape(content: bytes) -> bytes:
    """Check a tokenizer.json before any library reads it. Return an equivalent file for counting.

    The file is encoded again, so a duplicate name appears once, as it was checked. Parts without use for counting
    are left out.

    Raises:
        TokenizerRefused: it is no tokenizer, or has a part that is not known to be harmless; the error names it.
    """
    try:
        tokenizer = msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise TokenizerRefused("", "is not JSON") from None
    if not isinstance(tokenizer, dict):
        raise TokenizerRefused("", "is not a JSON object")
    _check_model(tokenizer.get("model"))
    normalizers = [*_parts(tokenizer.get("normalizer"), "normalizers")]
    pre_tokenizers = [*_parts(tokenizer.get("pre_tokenizer"), "pretokenizers")]
    for number, part in enumerate(normalizers):
        _check_normalizer(part, f"normalizer.{number}")
    for number, part in enumerate(pre_tokenizers):
        _check_pre_tokenizer(part, f"pre_tokenizer.{number}")
    kinds = Counter(part.get("type") for part in (*normalizers, *pre_tokenizers))
    if twice := sorted(kind for kind in _ONCE if kinds[kind] > 1):
        raise TokenizerRefused("pre_tokenizer", f"has more than one {twice[0]}, normalizers included")
    for number, part in enumerate(_parts(tokenizer.get("post_processor"), "processors")):
        _check_post_processor(part, f"post_processor.{number}")
    return msgspec.json.encode(tokenizer | {"decoder": None, "truncation": None, "padding": None})


def _check_model(model: Any) -> None:
    if not isinstance(model, dict) or not _is_in(_MODELS, model.get("type")):
        raise TokenizerRefused("model", "is of an unknown kind")
    if model.get("dropout"):
        raise TokenizerRefused("model.dropout", "makes the count of a text vary")
    longest = model.get("max_input_chars_per_word", WORD_CHARS_MAX)
    if type(longest) is not int or not 0 < longest <= WORD_CHARS_MAX:
        raise TokenizerRefused("model.max_input_chars_per_word", f"is not within {WORD_CHARS_MAX}")
    if any(len(token) > TOKEN_CHARS_MAX for token in _pieces(model.get("vocab"))):
        raise TokenizerRefused("model.vocab", f"has a token of more than {TOKEN_CHARS_MAX} characters")
    if model.get("type") == "BPE" or "merges" in model:
        for name in ("continuing_subword_prefix", "end_of_word_suffix"):
            # The library splits merges by its length, even inside a character.
            if model.get(name):
                raise TokenizerRefused(f"model.{name}", "is not used by any known model")


def _pieces(vocabulary: Any) -> Iterator[str]:
    for entry in vocabulary if isinstance(vocabulary, list) else ():
        if isinstance(entry, list) and entry and isinstance(entry[0], str):
            yield entry[0]


def _parts(part: Any, members: str) -> Iterator[dict[str, Any]]:
    """Yield the parts of a sequence, or the single part. A nested sequence is refused."""
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
        raise TokenizerRefused(field, f"is a {str(kind)[:40]} that may replace a text with anything")


def _check_pre_tokenizer(part: dict[str, Any], field: str) -> None:
    kind = part.get("type")
    if kind in _PRE_TOKENIZERS:
        return
    pattern = part.get("pattern") if kind == "Split" else None
    if not isinstance(pattern, dict) or len(pattern) != 1:
        raise TokenizerRefused(field, "is of an unknown kind")
    ((form, text),) = pattern.items()
    if form == "String" and isinstance(text, str) and 0 < len(text) <= PARTS_MAX:
        return
    if form != "Regex" or not _is_in(KNOWN, text):
        raise TokenizerRefused(field, "has a pattern that is not a known model's")


def _check_post_processor(part: dict[str, Any], field: str) -> None:
    kind, single = part.get("type"), part.get("single")
    if kind not in _POST_PROCESSORS:
        raise TokenizerRefused(field, "is of an unknown kind")
    # A template may contain the text repeatedly, and each time counts.
    if kind == "TemplateProcessing":
        pieces = single if isinstance(single, list) else [None, None]
        if sum(not isinstance(each, dict) or "SpecialToken" not in each for each in pieces) > 1:
            raise TokenizerRefused(field, "has the text more than once")


def _is_in(known: frozenset[Any], name: Any) -> bool:
    return (name is None or isinstance(name, str)) and name in known
