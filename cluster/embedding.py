"""What callers ask of an embedding model and what they get back: one vector for each text."""

from dataclasses import dataclass

from msgspec import Struct

from cluster.errors import ContextLengthExceeded, RequestInvalid

# As the OpenAI API has them.
INPUTS_MAX = 2048
TOKENS_MAX = 300_000
# Of one text: a longer one would take a decoder gigabytes of keys and values.
CONTEXT_TOKENS_MAX = 8192


class EmbedRequest(Struct, frozen=True, kw_only=True):
    """Either texts or lists of token ids, which are taken as they are.

    `dimensions` asks for the first so many of each vector, which only some models are trained for.
    """

    id: str
    texts: list[str] = []
    token_ids: list[list[int]] = []
    dimensions: int | None = None


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Vectors in the order of the request, fp32 with the least significant byte first, one behind the other.

    `token_counts` has one count for each; `compute_ns` is the time that computing them took.
    """

    vectors: bytes
    dimensions: int
    token_counts: list[int]
    compute_ns: int


def check_inputs(request: EmbedRequest) -> None:
    """What can be said before the tokenizer has seen it. Raises RequestInvalid."""
    if bool(request.texts) == bool(request.token_ids):
        raise RequestInvalid("input: must be texts or lists of tokens, and must not be empty", "input")
    inputs: list[str] | list[list[int]] = request.texts or request.token_ids
    if len(inputs) > INPUTS_MAX:
        raise RequestInvalid(f"input: {len(inputs)} inputs are more than {INPUTS_MAX}", "input")
    empty = next((at for at, one in enumerate(inputs) if not one), None)
    if empty is not None:
        raise RequestInvalid(f"input[{empty}]: must not be empty", "input")


def check_tokens(token_ids: list[list[int]], context_tokens: int, vocabulary: int) -> None:
    """Whether the model can read them. Raises ContextLengthExceeded, RequestInvalid."""
    total = 0
    for at, ids in enumerate(token_ids):
        total += len(ids)
        if not ids:
            raise RequestInvalid(f"input[{at}]: has no tokens", "input")
        if len(ids) > context_tokens:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {context_tokens} tokens, input[{at}] has {len(ids)}. "
                "Shorten or split it.",
                "input",
            )
        if not 0 <= min(ids) <= max(ids) < vocabulary:
            raise RequestInvalid(f"input[{at}]: a token is outside of the vocabulary of {vocabulary}", "input")
    if total > TOKENS_MAX:
        raise RequestInvalid(f"input: {total} tokens are more than {TOKENS_MAX}; send fewer at once", "input")
