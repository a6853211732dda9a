"""Measure how large a tokenizer's tokens are, so that prices per token can be compared.

A seller names the tokenizer of its listing's prices. A tokenizer of single bytes turns a price into four times the
tokens at a quarter each: the counts are right, but the listing looks cheap.
"""

from accounting.metering.counts import tokens_of_bytes
from market.protocol.counting.token_count import Counting

SAMPLE = (
    "The mill stands where the river bends. When the gate is raised, water falls on the wheel, the wheel turns "
    "the stones, and between them the grain becomes flour; nobody who lives nearby "
    "remembers a day without its sound. "
    "Die Mühle mahlt, was der Bach ihr bringt, und wer zuerst kommt, der mahlt zuerst. "
    "Le moulin tourne jour et nuit, et chacun attend son tour avec patience. "
    "磨坊的水车在河边慢慢转动,村民把麦子送来磨成面粉。 "
    "def grind(sacks: list[float]) -> float:\n    return sum(weight * 0.85 for weight in sacks if weight > 0)\n"
    '{"mill": "lower", "sacks": 12, "ground": true, "hours": [7, 12, 18]}'
)


def tokens_ratio(counting: Counting) -> float:
    """Return the tokens of usual text relative to one for every four bytes: the factor for comparing prices.

    It is 1.9 with the demo model's 4,096 pieces of English, and 3.6 with hardly more than single bytes.
    """
    return counting.text_tokens(SAMPLE) / tokens_of_bytes(len(SAMPLE.encode()))
