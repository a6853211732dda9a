"""A check whether a grammar compiles, before anything waits for it; llguidance decides."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from cluster.errors import RequestInvalid
from cluster.models.tool_calls.grammar import Grammar

IS_INSTALLED = find_spec("llguidance") is not None
if IS_INSTALLED or TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits

# A grammar travels in a frame, and compiling 150,000 characters takes half a second of a stage's time.
GRAMMAR_CHARACTERS_MAX = 65_536
_EXPLANATION_CHARACTERS_MAX = 300
_SCHEMA_ERROR = "failed to compile JSON schema: "

MISSING = "llguidance is not installed on this machine (extra `node`)"


def missing() -> str:
    """Return why no answer can be constrained here; empty if it can."""
    return "" if IS_INSTALLED else MISSING


def check_grammar(grammar: Grammar) -> None:
    """Raise RequestInvalid, naming the field, for a schema that is too large or that no grammar can express.

    It takes up to some hundred milliseconds, without blocking other threads.
    """
    if not IS_INSTALLED:
        raise RequestInvalid(f"answers cannot be constrained: {MISSING}", grammar.schemas[0][0])
    if len(grammar.lark) > GRAMMAR_CHARACTERS_MAX:
        field = max(grammar.schemas, key=lambda schema: len(schema[1]))[0]
        text = f"{field}: a grammar of {len(grammar.lark)} characters exceeds {GRAMMAR_CHARACTERS_MAX}"
        raise RequestInvalid(text, field)
    if not (problem := _problem(grammar.lark)):
        return
    for field, schema in grammar.schemas:
        if own_problem := _problem(schema):
            raise RequestInvalid(f"{field}: the schema cannot be enforced: {own_problem}", field)
    field = grammar.schemas[0][0]
    raise RequestInvalid(f"{field}: the schemas cannot be enforced together: {problem}", field)


def _problem(lark: str) -> str:
    message = LLMatcher.validate_grammar(lark, limits=LLParserLimits(verbose_errors=False))
    if not message or message.startswith("WARNING"):
        return ""
    return (
        message.partition(_SCHEMA_ERROR)[2].partition("\n")[0][:_EXPLANATION_CHARACTERS_MAX]
        or message[:_EXPLANATION_CHARACTERS_MAX]
    )
