"""Whether a seller reads all of a long prompt: something is said near its beginning, and asked for at its end."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Needle:
    """A long prompt, and what an answer must have in it."""

    prompt: str
    answer: str


def hide(sentences: Iterable[str], thing: str, answer: str, chars: int, *, place: float = 0.1) -> Needle:
    """Make a prompt of about so many characters; the fact stands at `place` of it, from 0 to 1.

    Take sentences from traffic of one's own or from books, another thing each time, and an answer that nobody
    guesses: a number of five digits, say.
    """
    said, fact = [], f"The {thing} is {answer}."
    length, has_fact = 0, False
    for sentence in sentences:
        if not has_fact and length >= place * chars:
            said.append(fact)
            has_fact = True
        if length >= chars:
            break
        said.append(sentence)
        length += len(sentence) + 1
    if not has_fact:
        said.append(fact)
    return Needle(f"{' '.join(said)}\n\nWhat is the {thing}? Answer with it alone.", answer)


def is_found(needle: Needle, answer: str) -> bool:
    """Whether an answer has it; commas and spaces between digits do not matter."""
    return _bare(needle.answer) in _bare(answer)


def _bare(text: str) -> str:
    return "".join(each for each in text.casefold() if each.isalnum())
