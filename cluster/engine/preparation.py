"""The preparation of a request before it waits: its prompt becomes tokens, its constraint a grammar."""

from dataclasses import dataclass

from cluster.generation import ChatPrompt, GenerateRequest
from cluster.models.grammar_check import check_grammar
from cluster.models.text import TextCodec
from cluster.models.tool_calls.grammar import Thinking, write_grammar


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared request. `is_thinking`: the prompt ends within a thought.

    `grammar` is empty without a constraint.
    """

    token_ids: list[int]
    is_thinking: bool = False
    grammar: str = ""


def prepare(codec: TextCodec, request: GenerateRequest, tokens_max: int) -> Prepared:
    """Turn the prompt into tokens and the constraint into a grammar.

    This takes milliseconds, longer for long prompts and large schemas. Raise RequestInvalid, naming the field, and
    ContextLengthExceeded.
    """
    if not isinstance(request.prompt, ChatPrompt):
        return Prepared(codec.encode(request.prompt, tokens_max))
    rendered = codec.render(request.prompt)
    thought = codec.format.thought
    is_thinking = thought is not None and rendered.rstrip().endswith(thought[0])
    grammar = _grammar(codec, request, rendered, is_thinking=is_thinking)
    return Prepared(codec.encode_text(rendered, tokens_max), is_thinking, grammar)


def _grammar(codec: TextCodec, request: GenerateRequest, rendered: str, *, is_thinking: bool) -> str:
    if request.constraint is None:
        return ""
    thinking: Thinking = "begun" if is_thinking else "perhaps"
    thought = codec.format.thought
    # An empty thought in the prompt says that the model must not think.
    if thought and rendered.rstrip().endswith(thought[1]):
        thinking = "never"
    grammar = write_grammar(request.constraint, codec.format, codec.special_ids(), thinking)
    check_grammar(grammar)
    return grammar.lark
