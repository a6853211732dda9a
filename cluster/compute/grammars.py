"""Grammars on the last stage: compiled beside the thread that computes, one matcher for each slot."""

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from cluster.errors import ModelError
from cluster.models.end_tokens import read_end_tokens
from cluster.models.grammar_check import IS_INSTALLED, missing

if IS_INSTALLED or TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

# Compiled grammars that are kept for later requests with the same one.
_KEPT_MAX = 64
# The limits of one mask, about 10 ms each: the pipeline waits for each.
_STEP_FUEL = 200_000
_STEP_ITEMS = 200_000
# The coordinator has checked that the grammar compiles. A busy machine may take this long.
_COMPILE_S = 5.0


class Grammars:
    """Compiles grammars for one model's vocabulary. The tokenizer is read in the background from the start."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.unavailable = missing()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._kept: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._tokenizer: Future[LLTokenizer] | None = None
        if not self.unavailable:
            self._tokenizer = self._pool.submit(_read_tokenizer, folder, vocabulary)

    def begin(self, lark: str, output: list[int]) -> "Matcher":
        """Return a matcher that has seen `output`. The grammar compiles meanwhile, if necessary."""
        if self.unavailable:
            return Matcher(self.vocabulary, None, output, self.unavailable)
        if lark not in self._kept:
            self._kept[lark] = self._pool.submit(self._compile, lark)
            while len(self._kept) > _KEPT_MAX:
                self._kept.popitem(last=False)
        self._kept.move_to_end(lark)
        return Matcher(self.vocabulary, self._kept[lark], output)

    def _compile(self, lark: str) -> "LLMatcher":
        assert self._tokenizer
        limits = LLParserLimits(step_lexer_fuel=_STEP_FUEL, step_max_items=_STEP_ITEMS, verbose_errors=False)
        return LLMatcher(self._tokenizer.result(), lark, limits=limits, log_level=0)


class Matcher:
    """One sequence's place in its grammar. If `problem` is set it cannot go on; the text says why."""

    def __init__(
        self, vocabulary: int, compiled: "Future[LLMatcher] | None", output: list[int], problem: str = ""
    ) -> None:
        self._vocabulary = vocabulary
        self._compiled = compiled
        self._output = output
        self._matcher: LLMatcher | None = None
        self.problem = problem

    def allowed(self) -> Tensor | None:
        """Return the ids [allowed] of the tokens that may come next, in order; None if there is a problem."""
        matcher = self._begun()
        if matcher is None:
            return None
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits[: self._vocabulary])
        if matcher.is_error() or not len(allowed):
            self.problem = _explain(matcher)
            return None
        return torch.from_numpy(allowed)

    def accept(self, token_id: int) -> None:
        """Advance by a token that has been drawn."""
        if self._matcher and not self._matcher.consume_token(token_id):
            self.problem = _explain(self._matcher)

    def _begun(self) -> "LLMatcher | None":
        if self._matcher is None and self._compiled and not self.problem:
            try:
                self._matcher = self._compiled.result(_COMPILE_S).deep_copy()
            except (TimeoutError, ModelError, RuntimeError, ValueError) as error:
                self.problem = f"the grammar could not be compiled: {error!r}"
                return None
            if not self._matcher.consume_tokens(self._output):
                self.problem = _explain(self._matcher)
        return None if self.problem else self._matcher


def _read_tokenizer(folder: Path, vocabulary: int) -> "LLTokenizer":
    """Return llguidance's tokenizer.

    Models pad their vocabularies. If the tokenizer has more tokens than its model, the extra ones are never drawn.
    """
    ends = sorted(read_end_tokens(folder)) or None
    file, slices = str(folder / "tokenizer.json"), LLTokenizer.json_slices()
    try:
        return LLTokenizer(file, n_vocab=vocabulary, eos_token=ends, slices=slices)
    except ValueError:
        return LLTokenizer(file, eos_token=ends, slices=slices)


def _explain(matcher: "LLMatcher") -> str:
    reason = matcher.get_error().partition("\n")[0][:200]
    return f"the schema is too complex to enforce: {reason or 'no token can follow'}"
