"""Measure what is computed while others wait: plans of many machines, and the tokens of hostile texts."""

import itertools
import json
import random
import time

from tokenizers import Tokenizer

from accounting.metering.delivered import SEGMENT_CHARS, TokenCounter
from cluster.plans.network import Link, Network
from cluster.plans.plan import Goal, plan_stages
from market.protocol.counting.token_count import Counting
from tests.cluster.test_plan import card, member, paced

PLAN = "a plan for 200 machines"
TEXT = "counting the tokens of 64 Ki characters of one kind, by a known model's pattern"
_MACHINES, _LAYERS = 200, 80
_TRY_AGAIN_S = 2.0
_TEXTS = ("A", "a", " ", "\n ", "\u0301", "!", "'s", "1", "A\u0301")
# The patterns by which known models' tokenizers split texts.
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LLAMA_3 = rf"{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_UPPER_FIRST = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_MISTRAL = (
    rf"{_UPPER_FIRST}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT_4O = (
    rf"{_UPPER_FIRST}{_ENDING}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_PATTERNS = {
    "gpt 2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama 3": _LLAMA_3,
    "qwen 2 and 3": _LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}"),
    "qwen 3.5": rf"{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
    "gpt 4o": _GPT_4O,
    "mistral": _MISTRAL,
    "deepseek": r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
    "of one kind": r"\p{N}{1,3}",
}
_GOALS: tuple[Goal, ...] = ("latency", "throughput")


def measure() -> dict[str, float]:
    """Return the longest of each, in seconds of CPU."""
    plans = [_plan_s(goal, stages) for goal in _GOALS for stages in (2, _MACHINES)]
    return {PLAN: max(plans), TEXT: max(map(_count_s, _PATTERNS.values()))}


def _plan_s(goal: Goal, stages_min: int) -> float:
    """Return the better of two tries if one took long: a neighbour on a core slows even a thread's own time."""
    chance = random.Random(_MACHINES)
    members = [
        member(n, chance.uniform(4, 24), pace=paced(chance.choice((1e-4, 2e-4, 4e-4)) * chance.uniform(0.8, 1.2)))
        for n in range(_MACHINES)
    ]
    is_radio = {each.node_id: chance.random() < 0.3 for each in members}
    links = {}
    for one, other in itertools.permutations(members, 2):
        slow = is_radio[one.node_id] + is_radio[other.node_id]
        delay_s = 1e-4 + 2e-3 * slow * chance.uniform(0.5, 2)
        links[one.node_id, other.node_id] = Link(delay_s=delay_s, bytes_per_s=1e7 if slow else 1e8)
    took_s: list[float] = []
    while not took_s or (took_s[-1] >= _TRY_AGAIN_S and len(took_s) < 2):
        began_s = time.thread_time()
        plan_stages("m", card(layers=_LAYERS), members, network=Network(links), goal=goal, stages_min=stages_min)
        took_s.append(time.thread_time() - began_s)
    return min(took_s)


def _count_s(pattern: str) -> float:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    in_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    content = {
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, in_bytes]},
        "added_tokens": [],
    }
    counting = Counting(TokenCounter(Tokenizer.from_str(json.dumps(content)), "0" * 64))
    longest_s = 0.0
    for text in _TEXTS:
        began_s = time.process_time()
        counting.text_tokens((text * SEGMENT_CHARS)[:SEGMENT_CHARS])
        longest_s = max(longest_s, time.process_time() - began_s)
    return longest_s
