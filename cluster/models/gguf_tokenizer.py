"""A GGUF's vocabulary as the files of a Hugging Face checkpoint: tokenizer.json and its companions."""

from typing import Any

from cluster.errors import ModelInvalid, ModelUnsupported

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPACE_MARK = "\u2581"

# How texts are split before merges apply: the models' own published patterns, by llama.cpp's names.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PATTERNS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), (_QWEN2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact"), (r"\p{N}", _GPT2)),
    "gpt-2": (_GPT2,),
    "tekken": (_TEKKEN,),
}
# With these, merges do not build words that are tokens already, and texts begin with BOS by default.
_WHOLE_WORDS = frozenset(name for name, patterns in _PATTERNS.items() if patterns in ((_LLAMA3,), (_TEKKEN,)))
# Files name one end token; these also end a turn if a vocabulary has them as control tokens.
_TURN_ENDS = frozenset(
    ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>")
)


def tokenizer_files(metadata: dict[str, Any], vocabulary: int) -> dict[str, dict[str, Any]]:
    """Return tokenizer.json, tokenizer_config.json and generation_config.json, by name.

    `vocabulary` is the number of embedding rows. Raise ModelUnsupported for an unknown kind of tokenizer or
    pre-tokenizer, and ModelInvalid for lists that contradict each other.
    """
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    kinds = metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    if len(tokens) > vocabulary or len(kinds) != len(tokens):
        raise ModelInvalid(
            f"GGUF metadata: {len(tokens)} tokens with {len(kinds)} types for {vocabulary} embedding rows"
        )
    named = {
        name: tokens[token_id]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if isinstance(token_id := metadata.get(f"tokenizer.ggml.{key}_token_id"), int) and token_id < len(tokens)
    }
    model = metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        tokenizer = _byte_level(metadata, tokens)
        add_bos = metadata.get("tokenizer.ggml.pre") in _WHOLE_WORDS
    elif model == "llama":
        tokenizer = _sentence_piece(metadata, tokens, kinds, named.get("unk"))
        add_bos = True
    else:
        raise ModelUnsupported(f"GGUF tokenizer {model!r} is not supported; supported: gpt2, llama")
    add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos))
    tokenizer["added_tokens"] = _added_tokens(tokens, kinds)
    if add_bos and "bos" in named:
        tokenizer["post_processor"] = _begins_with(named["bos"], tokens.index(named["bos"]))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": add_bos}
    settings |= {f"{name}_token": token for name, token in named.items()}
    if template := metadata.get("tokenizer.chat_template"):
        settings["chat_template"] = template
    return {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": settings,
        "generation_config.json": {"eos_token_id": _end_tokens(metadata, tokens, kinds)},
    }


def _byte_level(metadata: dict[str, Any], tokens: list[str]) -> dict[str, Any]:
    name = metadata.get("tokenizer.ggml.pre")
    if name not in _PATTERNS:
        raise ModelUnsupported(
            f"GGUF metadata: tokenizer.ggml.pre {name!r} is not supported; supported: {', '.join(_PATTERNS)}"
        )
    splits: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in _PATTERNS[name]
    ]
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    merges = [merge.split(" ", 1) for merge in _strings(metadata, "tokenizer.ggml.merges")]
    if any(len(merge) != 2 for merge in merges):
        raise ModelInvalid("GGUF metadata: tokenizer.ggml.merges has an entry that is not a pair")
    return _tokenizer(
        normalizer={"type": "NFC"} if _PATTERNS[name] == (_QWEN2,) else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": [*splits, bytes_only]},
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        model=_bpe(tokens, merges, ignore_merges=name in _WHOLE_WORDS),
    )


def _sentence_piece(
    metadata: dict[str, Any], tokens: list[str], kinds: list[int], unknown: str | None
) -> dict[str, Any]:
    """Return SentencePiece BPE: the pair whose union scores best merges first.

    Ranks of merges express the same.
    """
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ModelInvalid("GGUF metadata: tokenizer.ggml.scores must have one entry per token")
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    marks: list[dict[str, Any]] = [{"type": "Prepend", "prepend": _SPACE_MARK}] if prefix else []
    marks.append({"type": "Replace", "pattern": {"String": " "}, "content": _SPACE_MARK})
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE_MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    model = _bpe(tokens, _merges_by_score(tokens, kinds, scores), ignore_merges=False)
    return _tokenizer(
        normalizer={"type": "Sequence", "normalizers": marks},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": steps},
        model=model | {"byte_fallback": True, "fuse_unk": True, "unk_token": unknown},
    )


def _merges_by_score(tokens: list[str], kinds: list[int], scores: list[float]) -> list[list[str]]:
    ids = {token: at for at, token in enumerate(tokens) if kinds[at] in (_NORMAL, _USER_DEFINED)}
    ranked = [
        (-scores[token_id], ids[token[:cut]], ids[token[cut:]], token, cut)
        for token, token_id in ids.items()
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    return [[token[:cut], token[cut:]] for *_, token, cut in sorted(ranked)]


def _bpe(tokens: list[str], merges: list[list[str]], *, ignore_merges: bool) -> dict[str, Any]:
    vocabulary = {token: at for at, token in enumerate(tokens)}
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": ignore_merges,
        "vocab": vocabulary,
        "merges": [[a, b] for a, b in merges if a in vocabulary and b in vocabulary and a + b in vocabulary],
    }


def _tokenizer(**parts: Any) -> dict[str, Any]:
    return {"version": "1.0", "truncation": None, "padding": None, "post_processor": None} | parts


def _added_tokens(tokens: list[str], kinds: list[int]) -> list[dict[str, Any]]:
    return [
        {
            "id": at,
            "content": tokens[at],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != _USER_DEFINED,
        }
        for at, kind in enumerate(kinds)
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]


def _begins_with(token: str, token_id: int) -> dict[str, Any]:
    begin, text = {"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 1}}
    return {
        "type": "TemplateProcessing",
        "single": [begin, text],
        "pair": [begin, text, second],
        "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}},
    }


def _end_tokens(metadata: dict[str, Any], tokens: list[str], kinds: list[int]) -> list[int]:
    named = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    ends = {token_id for token_id in named if isinstance(token_id, int) and token_id < len(tokens)}
    return sorted(ends | {at for at, kind in enumerate(kinds) if kind == _CONTROL and tokens[at] in _TURN_ENDS})


def _strings(metadata: dict[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise ModelInvalid(f"GGUF metadata lacks {key}")
    return value
