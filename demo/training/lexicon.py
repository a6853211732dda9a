"""Read the decent and common part of WordNet's database.

The files data.* have one set of synonyms per line: its words, its pointers to other sets, and after `|` the
definition and the examples. cntlist.rev has the number of occurrences of each sense in tagged text, which orders
words by frequency.
"""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from random import Random

from demo.training.decency import is_decent
from demo.training.exchanges import capitalised
from demo.training.phrases import LISTS

PARTS = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
HYPERNYM, HYPONYM, ANTONYM, PART = "@", "~", "!", "%p"
USAGE_DOMAIN = ";u"
# WordNet's fields for animals, made things, bodies, food, natural things, people, plants and substances.
CONCRETE = {"05", "06", "08", "13", "17", "18", "19", "20", "27"}
# Sets for simple questions such as "is a dog an animal?".
CATEGORIES = frozenset(LISTS["categories"])


@dataclass(slots=True)
class Synset:
    """A set of words with one meaning."""

    key: str
    part: str
    domain: str
    words: list[str]
    definition: str
    examples: list[str]
    pointers: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    antonyms: dict[str, tuple[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Word:
    """A lemma with its usual senses, most common first."""

    lemma: str
    part: str
    senses: tuple[Synset, ...]
    count: int

    @property
    def likely(self) -> int:
        """How likely people are to ask for it: its frequency, with things before ideas."""
        return self.count * (6 if self.senses[0].domain in CONCRETE else 1)


class Lexicon:
    """The words of WordNet that are decent and occur in tagged text."""

    def __init__(self, folder: Path, taken: frozenset[str] = frozenset()) -> None:
        """Read the database. Other texts explain the `taken` words, so that one question has one answer."""
        self.taken = taken
        self.synsets: dict[str, Synset] = {}
        for part, name in PARTS.items():
            self._read_synsets(folder / f"data.{name}", part)
        counts = self._read_counts(folder / "cntlist.rev")
        self.words = [
            word
            for part, name in PARTS.items()
            for word in self._read_index(folder / f"index.{name}", part, counts)
        ]
        self.words.sort(key=lambda word: (-word.likely, word.lemma, word.part))
        self.common = {(word.lemma, word.part): word for word in self.words}
        # The most likely words come up often, the long tail rarely.
        self._cumulative = list(accumulate((rank + 60) ** -0.9 for rank in range(len(self.words))))

    def _read_synsets(self, path: Path, part: str) -> None:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("  "):
                continue
            data, _, gloss = line.partition(" | ")
            fields = data.split()
            word_count = int(fields[3], 16)
            words = [re.sub(r"\(.*\)", "", fields[4 + 2 * n]).replace("_", " ") for n in range(word_count)]
            definition, examples = _split_gloss(gloss)
            synset = Synset(part + fields[0], part, fields[1], words, definition, examples)
            pointers = fields[5 + 2 * word_count :]
            for n in range(int(fields[4 + 2 * word_count])):
                symbol, offset, target_part, ends = pointers[4 * n : 4 * n + 4]
                target = ("a" if target_part == "s" else target_part) + offset
                if symbol == ANTONYM:
                    synset.antonyms[words[int(ends[:2], 16) - 1]] = (target, int(ends[2:], 16) - 1)
                else:
                    synset.pointers[symbol].append(target)
            self.synsets[synset.key] = synset

    @staticmethod
    def _read_counts(path: Path) -> Counter[tuple[str, str]]:
        counts: Counter[tuple[str, str]] = Counter()
        part_numbers = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
        for line in path.read_text().splitlines():
            sense, _, count = line.split()
            lemma, _, rest = sense.partition("%")
            counts[lemma.replace("_", " "), part_numbers[rest[0]]] += int(count)
        return counts

    def _read_index(self, path: Path, part: str, counts: Counter[tuple[str, str]]) -> list[Word]:
        words = []
        for line in path.read_text().splitlines():
            if line.startswith("  "):
                continue
            fields = line.split()
            lemma, sense_count, pointer_count = fields[0].replace("_", " "), int(fields[2]), int(fields[3])
            offsets = fields[6 + pointer_count : 6 + pointer_count + sense_count]
            senses = tuple(self.synsets[part + offset] for offset in offsets[:2])
            decent = tuple(sense for sense in senses if self._is_fit(lemma, sense))
            plain = re.fullmatch(r"[a-z]+([ -][a-z]+)?", lemma) and len(lemma) > 2
            if plain and decent and decent[0] is senses[0] and counts[lemma, part]:
                words.append(Word(lemma, part, decent, counts[lemma, part]))
        return words

    def _is_fit(self, lemma: str, sense: Synset) -> bool:
        # The index is in lower case. A word that only exists capitalised is a name.
        usages = (word for key in sense.pointers[USAGE_DOMAIN] for word in self.synsets[key].words)
        text = " ".join((lemma, sense.definition, *sense.words, *usages))
        return lemma in sense.words and is_decent(text) and 2 < len(sense.definition) < 160

    def draw_word(self, random: Random) -> Word:
        """Draw a word, common ones more often."""
        return random.choices(self.words, cum_weights=self._cumulative)[0]

    def sentence(self, random: Random) -> str:
        """Return an example sentence of a common word."""
        while True:
            found = self.example_of(self.draw_word(random), random)
            if found:
                return found

    def example_of(self, word: Word, random: Random) -> str:
        """Return a sentence that uses the word, or ""."""
        stem = word.lemma[: max(3, len(word.lemma) - 2)]
        fitting = [e for sense in word.senses for e in sense.examples if stem in e.lower() and is_decent(e)]
        return random.choice(fitting) if fitting else ""

    def related(self, word: Word, symbol: str) -> list[str]:
        """Return common first words of the sets that a pointer leads to."""
        names = [self.synsets[key].words[0] for key in word.senses[0].pointers[symbol]]
        return [name for name in names if (name, word.part) in self.common and name != word.lemma]

    def categories(self, word: Word) -> set[str]:
        """Return the simple categories above a noun."""
        reached, todo = set(), list(word.senses[0].pointers[HYPERNYM])
        while todo:
            key = todo.pop()
            reached.add(self.synsets[key].words[0])
            todo.extend(self.synsets[key].pointers[HYPERNYM])
        return reached & CATEGORIES


def _split_gloss(gloss: str) -> tuple[str, list[str]]:
    """Return the definition and the complete example sentences of a gloss."""
    quoted = re.findall(r'"([^"]+)"', gloss)
    definition = re.split(r';?\s*"', gloss, maxsplit=1)[0].split("; ")[0].strip(" ;:")
    definition = re.sub(r"\s+", " ", re.sub(r"\s*\([^)]*\)", "", definition)).strip()
    examples = [
        capitalised(e.strip()) + ("" if e.rstrip()[-1] in ".!?" else ".") for e in quoted if len(e.split()) > 2
    ]
    return definition, [re.sub(r"`([^']*)'", r'"\1"', e) for e in examples if ";" not in e]
