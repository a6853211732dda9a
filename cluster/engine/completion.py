"""One continuation from tokens to text: it detokenizes and ends at an end token, a stop string or a limit."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from cluster.engine.sequence import Sequence
from cluster.generation import Alternative, FinishReason, Limits, Resume, SampledToken, TokenEvent
from cluster.models.text import Detokenizer, StopMatcher, TextCodec


@dataclass(slots=True)
class Completion:
    """A sequence together with what its reader sees. `tokens` counts its output tokens without the end token."""

    choice: int
    sequence: Sequence
    limits: Limits
    context_tokens: int
    codec: TextCodec
    detokenizer: Detokenizer
    matcher: StopMatcher
    tokens: int = 0
    finished: bool = False
    # Ids that no event has carried yet, and the number of next characters that another coordinator has sent.
    _unsent_ids: list[int] = field(default_factory=list)
    _known_characters: int = 0

    @classmethod
    def begin(
        cls, choice: int, sequence: Sequence, limits: Limits, context: int, detokenizer: Detokenizer
    ) -> "Completion":
        """Return the completion of a sequence; `context` is the pipeline's context length in tokens."""
        codec = detokenizer.codec
        return cls(choice, sequence, limits, context, codec, detokenizer, StopMatcher(limits.stop))

    def resume(self, received: Resume) -> TokenEvent | None:
        """Take over the tokens that another coordinator has sent.

        Return an event with the text that goes beyond them, if any.
        """
        self._known_characters = received.characters
        text, finish = "", None
        for token_id in received.token_ids:
            self.sequence.tokens.append(token_id)
            if event := self.accept(SampledToken(token_id)):
                text += event.text
                finish = event.finish
            if finish:
                break
        self._unsent_ids.clear()
        return self._event(text, (), finish) if text or finish else None

    def accept(self, token: SampledToken) -> TokenEvent | None:
        """Return the event for the reader that follows from this token, or None while its text is not certain."""
        self._unsent_ids.append(token.token_id)
        if token.token_id in self.codec.end_token_ids and not self.limits.ignore_eos:
            return self._finish("stop", self._held_text(), ())
        self.tokens += 1
        text, stopped = self.matcher.push(self.detokenizer.push(token.token_id))
        named = (self._name(token),) if self.sequence.sampling.logprobs >= 0 else ()
        if stopped:
            return self._finish("stop", text, named)
        if self._is_full():
            return self._finish("length", text + self._held_text(), named)
        if not text and not named:
            return None
        return self._event(self._unknown(text), named, None)

    def move(self, context_tokens: int) -> TokenEvent | None:
        """Adopt the next pipeline's context length. Return a final event if the sequence is already that long."""
        self.context_tokens = context_tokens
        self.sequence.tokens_max = min(self.sequence.tokens_max, context_tokens)
        if self.finished or not self._is_full():
            return None
        return self._finish("length", self._held_text(), ())

    def _is_full(self) -> bool:
        limit = self.limits.max_tokens
        return len(self.sequence.tokens) >= self.context_tokens or (limit is not None and self.tokens >= limit)

    def _held_text(self) -> str:
        text, stopped = self.matcher.push(self.detokenizer.flush())
        return text if stopped else text + self.matcher.flush()

    def _unknown(self, text: str) -> str:
        """Return the part of this text that the reader does not have yet."""
        known = min(len(text), self._known_characters)
        self._known_characters -= known
        return text[known:]

    def _finish(self, reason: FinishReason, text: str, tokens: tuple[SampledToken, ...]) -> TokenEvent:
        self.finished = True
        return self._event(self._unknown(text), tokens, reason)

    def _event(self, text: str, tokens: tuple[SampledToken, ...], reason: FinishReason | None) -> TokenEvent:
        token_ids, self._unsent_ids = tuple(self._unsent_ids), []
        return TokenEvent(self.choice, text, self.tokens, self.sequence.spent_ns, tokens, token_ids, reason)

    def _name(self, token: SampledToken) -> SampledToken:
        raw = self.codec.token_bytes
        top = tuple(Alternative(a.token_id, a.logprob, raw(a.token_id)) for a in token.top)
        return replace(token, top=top, raw=raw(token.token_id))
