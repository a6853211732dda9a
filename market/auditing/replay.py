"""The same greedy request to several sellers of one model: who is alone with what they say. Pure.

Two who differ say nothing about which of them is wrong; a third one does. Owners are asked, not identities: many
names of one of them would outvote the others.
"""

from collections.abc import Mapping

SAME_CHARS = 48
"""Answers that begin so much alike come of the same model: arithmetic takes them apart only later, if at all."""


def is_same(one: str, other: str) -> bool:
    """Whether two greedy answers to one request may come of one model."""
    one, other = one.strip(), other.strip()
    return one == other or (len(one) >= SAME_CHARS and one[:SAME_CHARS] == other[:SAME_CHARS])


def outliers(answers: Mapping[str, str]) -> frozenset[str] | None:
    """Owners whose answer is like nobody's while most others' are alike; None where that cannot be told yet.

    None asks for one more seller. What two agree on is believed only if no other two agree on something else.
    """
    alike = {owner: {other for other in answers if is_same(answers[owner], answers[other])} for owner in answers}
    largest = max(map(len, alike.values()), default=0)
    if largest < 2:
        return None
    groups = {frozenset(each) for each in alike.values() if len(each) == largest}
    return frozenset(answers) - next(iter(groups)) if len(groups) == 1 and 2 * largest > len(answers) else None
