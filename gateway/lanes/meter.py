"""What an answer turned out to use."""

from msgspec import Struct

from accounting.ledger.postings import CountSource

_COUNTED_MAX = 10**9


class Meter(Struct):
    """Counts of one answer; the lane fills it while the bytes pass.

    `finish_reasons` are why its choices ended, in their order, where that was seen on the way.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    source: CountSource = "estimate"
    compute_ns: int = 0
    is_complete: bool = False
    finish_reasons: tuple[str, ...] = ()

    def count(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> None:
        """What a backend says it was; what nobody could have used is none."""
        if not 0 <= cached_tokens <= prompt_tokens < _COUNTED_MAX:
            prompt_tokens = prompt_tokens if 0 <= prompt_tokens < _COUNTED_MAX else 0
            cached_tokens = min(prompt_tokens, cached_tokens) if 0 <= cached_tokens < _COUNTED_MAX else 0
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = cached_tokens
        self.completion_tokens = completion_tokens if 0 <= completion_tokens < _COUNTED_MAX else 0
        self.source = "upstream"

    def take(self, counted: "Meter") -> None:
        """The token counts of another meter, and where they come from."""
        self.prompt_tokens = counted.prompt_tokens
        self.cached_tokens = counted.cached_tokens
        self.completion_tokens = counted.completion_tokens
        self.source = counted.source
