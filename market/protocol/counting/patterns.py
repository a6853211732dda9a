"""List the patterns that known models' tokenizers split texts by. Each whole pattern passes over a text once.

A single branch cannot be judged. If one branch reads a run of letters or spaces and fails, a later branch has to
take the whole run. Otherwise the next attempt reads it again from its second character.
"""

from itertools import chain, product

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ENDINGS = (
    _ENDING,
    r"'(?i:[sdmt]|ll|ve|re)",
    r"'(?:[sdmt]|ll|ve|re)",
    r"'(?:s|t|re|ve|m|ll|d)",
    "'s|'t|'re|'ve|'m|'ll|'d",
)
_NUMBERS = (r"\p{N}", r"\p{N}{1,2}", r"\p{N}{1,3}")
_SIGNS = (
    r" ?[^\s\p{L}\p{N}]+",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r" ?[^\s\p{L}\p{N}]++[\r\n]*",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
)
_LINES = (r"\s*[\r\n]+", r"\s*[\r\n]")
_SPACES = (r"\s+(?!\S)|\s+",)


def _cased(ending: str) -> str:
    """Return words by their case. The first branch gives up only before text that the second one takes."""
    return rf"{_BEFORE}{_UPPER}*{_LOWER}+{ending}|{_BEFORE}{_UPPER}+{_LOWER}*{ending}"


# The alternatives for each position of a family's pattern, in this order.
_FAMILIES: tuple[tuple[tuple[str, ...], ...], ...] = (
    # GPT-2, and its successors with their own way to write the endings.
    (_ENDINGS, (r" ?\p{L}+",), (r" ?\p{N}+", *_NUMBERS), (_SIGNS[0],), _SPACES),
    # GPT-4, Llama 3, Qwen 2 to 3.5, GLM 4, and the demo model.
    (
        _ENDINGS,
        (rf"{_BEFORE}\p{{L}}+", rf"{_BEFORE}+\p{{L}}+", rf"{_BEFORE}[\p{{L}}\p{{M}}]+"),
        _NUMBERS,
        _SIGNS,
        _LINES,
        _SPACES,
    ),
    # GPT-4o, Llama 4, gpt-oss; Mistral NeMo and later.
    ((_cased(f"{_ENDING}?"), _cased("")), _NUMBERS, _SIGNS, _LINES, _SPACES),
    # DeepSeek V3.
    (
        (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",),
        (r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",),
        (r" ?[\p{P}\p{S}]+[\r\n]*",),
        _LINES,
        _SPACES,
    ),
)
# Single runs, or a few characters, that a tokenizer splits off in addition to its other patterns.
_ALONE = (
    *_NUMBERS,
    *(r"\p{N}+", r"\d", "[0-9]", "[0-9][0-9][0-9]", "[\r\n]", r"[\r\n]", r"\s+"),
    *(r"\s?\p{L}+", r"\s?\p{P}+"),
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
)
KNOWN = frozenset(chain(_ALONE, *(map("|".join, product(*family)) for family in _FAMILIES)))
