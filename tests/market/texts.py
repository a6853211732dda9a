"""Answers as honest models write them: prose, code, data, tables, scripts with joiners. Drawn from a seed."""

import base64
import json
from collections.abc import Callable, Iterator
from functools import cache
from itertools import cycle
from pathlib import Path
from random import Random

from demo.training import tales

ROOT = Path(__file__).parents[2]
_PERSIAN = [
    "می\u200cخواهم",
    "کتاب\u200cهای",
    "تازه",
    "را",
    "ببینم",
    "و",
    "نمی\u200cدانم",
    "کجا",
    "هستند",
    "خانه\u200cی",
    "ما",
    "بزرگ",
    "است",
]
_HINDI = [
    "क्\u200dया",
    "श्री",
    "लङ्\u200dका",
    "में",
    "वर्षा",
    "होती",
    "है",
    "और",
    "नदी",
    "बहती",
    "रहती",
    "है",
    "हम",
    "सब",
    "जानते",
    "हैं",
]
_CHINESE = list("磨坊的水车在河边慢慢转动村民把麦子送来磨成面粉然后带回家做面包孩子们很高兴")
_EMOJI = ["👩\u200d🌾", "❤️", "👨\u200d👩\u200d👧\u200d👦", "🌾", "⚙️", "🏴\u200d☠️", "👍🏽", "☀️", "🧑\u200d🔧"]


@cache
def _pages(pattern: str) -> tuple[str, ...]:
    return tuple(path.read_text() for path in sorted(ROOT.glob(pattern)))


def _page(random: Random, pattern: str) -> str:
    page = random.choice(_pages(pattern))
    start = random.randrange(max(1, len(page) - 2_000))
    return page[start : start + random.randrange(300, 8_000)]


def _words(random: Random, words: list[str], between: str = " ") -> str:
    return between.join(random.choice(words) for _ in range(random.randrange(60, 600)))


def _data(random: Random) -> str:
    rows = [
        {
            "id": n,
            "name": tales.cast(random).name,
            "grams": random.randrange(10_000),
            "is_paid": random.random() < 0.5,
        }
        for n in range(random.randrange(5, 80))
    ]
    return json.dumps(rows, indent=random.choice([None, 2, 4, 8]))


def _table(random: Random) -> str:
    rows = random.randrange(5, 60)
    cells = (f"| {n:<4}| {tales.cast(random).hero:<40}| {random.random():>12.4f} |" for n in range(rows))
    return "\n".join(cells)


def _numbers(random: Random) -> str:
    first = random.randrange(1_000)
    return random.choice([", ", "\n"]).join(map(str, range(first, first + random.randrange(100, 1_500))))


def _log(random: Random) -> str:
    lines = random.randrange(20, 120)
    return "\n".join(
        f"2026-11-{random.randrange(1, 29):02}T{n % 24:02}:00:{n % 60:02}Z INFO gateway "
        f"request {random.getrandbits(48):012x} served in {random.randrange(900)} ms"
        for n in range(lines)
    )


def _drawn(random: Random) -> str:
    """A bar chart in characters."""
    return "\n".join(f"{n:>3} {'#' * random.randrange(2, 60)}" for n in range(random.randrange(10, 60)))


KINDS: tuple[Callable[[Random], str], ...] = (
    tales.long_tale,
    lambda random: _page(random, "accounting/**/*.py"),
    lambda random: _page(random, "docs/*.md"),
    lambda random: _page(random, "gateway/console/templates/*.html"),
    _data,
    _table,
    _numbers,
    _log,
    _drawn,
    lambda random: base64.b64encode(random.randbytes(random.randrange(300, 3_000))).decode(),
    lambda random: _words(random, _PERSIAN),
    lambda random: _words(random, _HINDI),
    lambda random: _words(random, _CHINESE, ""),
    lambda random: _words(random, _EMOJI),
)


def honest_texts(seed: int, count: int) -> Iterator[str]:
    """`count` texts, as many of each kind."""
    random = Random(seed)
    for kind, _ in zip(cycle(KINDS), range(count), strict=False):
        yield kind(random)
