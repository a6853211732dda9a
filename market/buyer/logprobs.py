"""Log probabilities from an untrusted seller, in OpenAI's two forms: only numbers and short texts pass."""

from typing import Annotated, Any

from msgspec import Meta, Struct

Json = dict[str, Any]

_TOP_MAX = 20
_TOKENS_MAX = 4096

_Text = Annotated[str, Meta(max_length=512)]
_Bytes = Annotated[list[Annotated[int, Meta(ge=0, le=255)]], Meta(max_length=2048)]
_Nats = Annotated[float, Meta(ge=-1e6, le=1e6)]
_Top = Annotated[dict[_Text, _Nats], Meta(max_length=_TOP_MAX)]


class _Token(Struct, frozen=True):
    token: _Text
    logprob: _Nats
    bytes: _Bytes | None = None


class _Chosen(_Token, frozen=True):
    top_logprobs: Annotated[list[_Token], Meta(max_length=_TOP_MAX)] = []


class Logprobs(Struct, frozen=True):
    """`content` belongs to a chat; the other lists belong to a completion."""

    content: Annotated[list[_Chosen], Meta(max_length=_TOKENS_MAX)] | None = None
    tokens: Annotated[list[_Text], Meta(max_length=_TOKENS_MAX)] | None = None
    token_logprobs: Annotated[list[_Nats | None], Meta(max_length=_TOKENS_MAX)] | None = None
    top_logprobs: Annotated[list[_Top | None], Meta(max_length=_TOKENS_MAX)] | None = None
    text_offset: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=_TOKENS_MAX)] | None = None


def logprobs_of(given: Logprobs, *, is_chat: bool) -> Json | None:
    """Return log probabilities as our callers get them, or None if there are none.

    A completion's lists are cut or filled to the number of its tokens.
    """
    if is_chat:
        return {"content": [_chosen(each) for each in given.content]} if given.content else None
    if not given.tokens:
        return None
    count = len(given.tokens)
    lists: dict[str, list[Any]] = {
        "token_logprobs": given.token_logprobs or [],
        "top_logprobs": given.top_logprobs or [],
        "text_offset": given.text_offset or [],
    }
    filled = {name: [*each[:count], *[None] * (count - len(each))] for name, each in lists.items()}
    return {"tokens": given.tokens, **filled}


def tokens_of(logprobs: Json) -> int:
    """Return how many tokens have log probabilities."""
    return len(logprobs.get("content") or logprobs.get("tokens") or ())


def joined(known: Json | None, more: Json) -> Json:
    """Return `known` with `more` appended."""
    return more if known is None else {name: [*known[name], *more[name]] for name in more}


def _chosen(each: _Chosen) -> Json:
    return {**_token(each), "top_logprobs": [_token(other) for other in each.top_logprobs]}


def _token(each: _Token) -> Json:
    return {"token": each.token, "logprob": each.logprob, "bytes": each.bytes}
