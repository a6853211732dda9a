"""Questions for canaries if the owner gives none: too many for a seller to know all their answers.

Our own traffic is better, because a seller that knows these sentences recognizes audits.
"""

from collections.abc import Iterator, Sequence
from random import Random

_WORDS: Sequence[str] = (
    *("river", "market", "window", "letter", "garden", "engine", "winter", "harbour", "bridge", "mirror"),
    *("candle", "forest", "ladder", "kettle", "island", "violin", "ticket", "carpet", "desert", "hammer"),
    *("orchard", "lantern", "railway", "compass", "blanket", "cottage", "granite", "pepper", "saddle", "tunnel"),
)
_PLACES: Sequence[str] = (
    *("Norway", "Peru", "Kenya", "Japan", "Portugal", "Canada", "Vietnam", "Greece", "Egypt", "Chile"),
    *("Poland", "Iceland", "Morocco", "Thailand", "Ireland", "Austria", "Cuba", "Nepal", "Finland", "Turkey"),
)
_FORMS: Sequence[str] = (
    "Write one sentence in which both a {one} and a {two} occur.",
    "Translate into French: the {one} stands beside the {two}.",
    "What do a {one} and a {two} have in common? Answer briefly.",
    "I have {n} boxes with {m} of them each. How many {one} pictures are that?",
    "What is the capital of {place}, and what would people from there use a {one} for?",
    "Sort alphabetically: {one}, {two}, {place}.",
    "Write a JSON object with the keys \"{one}\" and \"{two}\" and the values {n} and {m}.",
    "Spell the word {one} backwards, then say what it means.",
    "Give three words that rhyme with {one} or describe a {two}.",
    "Write a Python function called {one}_{two} that returns {n} plus {m}.",
)  # fmt: skip


def questions(chance: Random) -> Iterator[str]:
    """Yield questions without end, at random; repetitions are rare."""
    while True:
        one, two = chance.sample(_WORDS, 2)
        numbers = {"n": chance.randint(3, 97), "m": chance.randint(3, 97)}
        yield chance.choice(_FORMS).format(one=one, two=two, place=chance.choice(_PLACES), **numbers)
