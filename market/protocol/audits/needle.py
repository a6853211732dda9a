"""Test whether a seller reads all of a long prompt: it states a fact near its beginning and asks for it at its
end.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Needle:
    """A long prompt, and what its answer must contain."""

    prompt: str
    answer: str


def hide(sentences: Iterable[str], thing: str, answer: str, chars: int, *, place: float = 0.1) -> Needle:
    """Make a prompt of about `chars` characters, with the fact at `place` of it, from 0 to 1.

    Take sentences from own traffic or from books, with another thing each time, and an answer that cannot be
    guessed, such as a number of five digits.
    """
    chosen, fact = [], f"The {thing} is {answer}."
    length, has_fact = 0, False
    for sentence in sentences:
        if not has_fact and length >= place * chars:
            chosen.append(fact)
            has_fact = True
        if length >= chars:
            break
        chosen.append(sentence)
        length += len(sentence) + 1
    if not has_fact:
        chosen.append(fact)
    return Needle(f"{' '.join(chosen)}\n\nWhat is the {thing}? Answer with it alone.", answer)


def is_found(needle: Needle, answer: str) -> bool:
    """Return whether an answer contains it. Commas and spaces between digits do not matter."""
    return _bare(needle.answer) in _bare(answer)


def _bare(text: str) -> str:
    return "".join(each for each in text.casefold() if each.isalnum())
