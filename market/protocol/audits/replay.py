"""Send the same greedy request to several sellers of one model, and find the one that answers alone. Pure.

If two differ, that does not show which is wrong; a third one does. Owners count, not identities: otherwise an
owner with many names would outvote the others.
"""

from collections.abc import Mapping

SAME_CHARS = 48
"""Answers with this many equal first characters come from one model: arithmetic separates them only later, if at
all.
"""


def is_same(one: str, other: str) -> bool:
    """Return whether two greedy answers to one request may come from one model."""
    one, other = one.strip(), other.strip()
    return one == other or (len(one) >= SAME_CHARS and one[:SAME_CHARS] == other[:SAME_CHARS])


def outliers(answers: Mapping[str, str]) -> frozenset[str] | None:
    """Return the owners whose answer differs while most others agree; None if that cannot be told yet.

    None asks for one more seller. An agreement of two is believed only if no other two agree on something else.
    """
    alike = {owner: {other for other in answers if is_same(answers[owner], answers[other])} for owner in answers}
    largest = max(map(len, alike.values()), default=0)
    if largest < 2:
        return None
    groups = {frozenset(each) for each in alike.values() if len(each) == largest}
    return frozenset(answers) - next(iter(groups)) if len(groups) == 1 and 2 * largest > len(answers) else None
