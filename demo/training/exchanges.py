"""Reads the dialogues in text/ and asks their questions in many ways.

A text file is a list of entries. Lines that begin a part of an entry:

    ? question | another way to ask it       + what "tell me more" brings
    @ a thing    asks "What is a thing?" in many ways
    = answer, which may run over several lines

An entry whose first line is `% column; column` is a table: its questions and answers name columns in braces
(`{city}`, with an article `{a animal}` or `{A animal}`, capitalised `{C thing}`); rows follow as `- cell; cell`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from demo.training.phrases import LISTS

TOPIC_QUESTIONS = (
    "What is {topic}?",
    "What is {topic}?",
    "What is {topic}?",
    "What's {topic}?",
    "Tell me what {topic} is.",
    "Tell me about {topic}.",
    "Explain {topic}.",
    "Explain what {topic} is.",
    "Please explain {topic}.",
    "Can you explain what {topic} is?",
    "Can you explain {topic} to me?",
    "Explain {topic} in simple words.",
    "Explain {topic} to a child.",
    "Describe {topic}.",
    "Define {topic}.",
    "Do you know what {topic} is?",
    "What do you know about {topic}?",
    "I want to know what {topic} is.",
    "What exactly is {topic}?",
    "What do you mean by {bare}?",
    "What does the word {bare} mean?",
    "What does {bare} mean?",
    "{bare}?",
)
GREETINGS = ("Hi! ", "Hello! ", "Hello, ", "Hey, ", "Excuse me, ", "OK, ")
ANNOUNCEMENTS = (
    "Please tell me: ",
    "Tell me: ",
    "Can you tell me: ",
    "I have a question: ",
    "I would like to know: ",
    "Quick question: ",
    "So, ",
    "Well, ",
)
# First words that lose their capital after a prefix. Names keep their capitals.
COMMON_FIRST_WORDS = frozenset(LISTS["common first words"])


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question with its answer. `more` is what is left to say about it; `exact` forbids other wordings."""

    question: str
    answer: str
    more: str = ""
    exact: bool = False
    ask_next: Callable[[Random], "Exchange"] | None = field(default=None, compare=False)

    @property
    def short_answer(self) -> str:
        """The first sentence of the answer."""
        return first_sentence(self.answer)


@dataclass(slots=True)
class Entry:
    """Ways to ask one thing, and its answer."""

    questions: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    answer: str = ""
    more: str = ""

    def draw(self, random: Random) -> Exchange:
        """Ask in one of the ways."""
        from_topic = self.topics and (not self.questions or random.random() < 0.6)
        if from_topic:
            topic = random.choice(self.topics)
            bare = re.sub(r"^(an?|the) ", "", topic)
            question = random.choice(TOPIC_QUESTIONS).format(topic=topic, bare=bare)
            question = question[0].upper() + question[1:]
        else:
            question = random.choice(self.questions)
        return Exchange(question, self.answer, self.more)


@dataclass(slots=True)
class Table:
    """Rows of facts and the entries that ask for them."""

    columns: list[str]
    entries: list[Entry] = field(default_factory=list)
    rows: list[dict[str, str]] = field(default_factory=list)

    def draw(self, random: Random) -> Exchange:
        """Ask about one row. The next question may be the same one about another row."""
        entry = random.choice(self.entries)
        row = random.choice(self.rows)
        return Exchange(
            fill(random.choice(entry.questions), row),
            fill(entry.answer, row),
            ask_next=lambda random: self._same_about_another(entry, random),
        )

    def _same_about_another(self, entry: Entry, random: Random) -> Exchange:
        row = random.choice(self.rows)
        asked_for = next((name for name in re.findall(r"{(?:[aAC] )?(\w+)}", entry.questions[0])), self.columns[0])
        question = random.choice(("And {x}?", "What about {x}?", "And what about {x}?", "How about {x}?", "{x}?"))
        with_article = re.search(rf"{{[aA] {asked_for}}}", entry.questions[0])
        subject = with_indefinite_article(row[asked_for]) if with_article else row[asked_for]
        return Exchange(capitalised(question.format(x=subject)), fill(entry.answer, row))

    def statements(self) -> Iterator[list[str]]:
        """Yield all statements about each row."""
        for row in self.rows:
            yield [fill(entry.answer, row) for entry in self.entries]


def capitalised(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def first_sentence(text: str) -> str:
    """Return the text up to its first full stop, question mark or exclamation mark."""
    found = re.match(r".+?[.!?](?=\s|$)", text, flags=re.DOTALL)
    return found.group() if found else text


def with_indefinite_article(noun: str) -> str:
    """Add the article: `a river`, `an hour`, `an owl`, `a unit`."""
    if noun.startswith(("a ", "an ", "the ")):
        return noun
    vowel = re.match(r"[aeio]|u(?!n[i]|se|ti|ro|ran|k)|hour|honest|honou?r|heir", noun, flags=re.IGNORECASE)
    spelled = re.match(r"eu|ewe|one\b|once\b", noun, flags=re.IGNORECASE)
    return f"{'an' if vowel and not spelled else 'a'} {noun}"


def fill(template: str, row: Mapping[str, str]) -> str:
    """Put the cells of a row into a template."""

    def cell(found: re.Match[str]) -> str:
        style, name = found.group(1), found.group(2)
        value = with_indefinite_article(row[name]) if style in ("a", "A") else row[name]
        return capitalised(value) if style in ("A", "C") else value

    filled = re.sub(r"{(?:([aAC]) )?(\w+)}", cell, template)
    return capitalised(filled)


def parse(path: Path) -> tuple[list[Entry], list[Table]]:
    """Return all entries and tables of one file."""
    entries: list[Entry] = []
    tables: list[Table] = []
    table: Table | None = None
    part = ""
    for line in path.read_text().splitlines():
        mark, _, rest = line.partition(" ")
        if mark == "#" or (not line and part != "="):
            continue
        if mark == "%":
            table = Table([name.strip() for name in rest.split(";")])
            tables.append(table)
        elif mark in ("?", "@"):
            home = entries if table is None else table.entries
            if not home or home[-1].answer:
                home.append(Entry())
            ways = [way.strip() for way in rest.split("|")]
            (home[-1].questions if mark == "?" else home[-1].topics).extend(ways)
        elif mark == "-" and table is not None:
            cells = [cell.strip() for cell in rest.split(";")]
            if len(cells) != len(table.columns):
                raise ValueError(f"{path.name}: {line!r} does not fit {table.columns}")
            table.rows.append(dict(zip(table.columns, cells, strict=True)))
        else:
            _add_text((entries if table is None else table.entries)[-1], mark, part, line, rest)
        part = mark if mark in ("?", "@", "=", "+", "%", "-") and not (mark == "-" and table is None) else part
    for entry in (*entries, *(entry for table in tables for entry in table.entries)):
        entry.answer = entry.answer.strip()
    return entries, tables


def _add_text(entry: Entry, mark: str, part: str, line: str, rest: str) -> None:
    """Begin an answer, begin its second part, or continue the answer."""
    if mark == "=":
        entry.answer = rest
    elif mark == "+":
        entry.more = rest
    elif part == "=":
        entry.answer += "\n" + line
    else:
        raise ValueError(f"unexpected line {line!r}")


def vary(question: str, random: Random) -> str:
    """Return the question as different people would type it."""
    draw = random.random()
    ending = question[-1]
    if draw < 0.60 or len(question) < 4:
        return question
    if draw < 0.70:
        return question.rstrip("?.! ").lower() if random.random() < 0.6 else question.rstrip("?.! ")
    if draw < 0.75:
        return uncapitalised(question)
    if draw < 0.80 and ending in ".?!":
        return f"{question[:-1]}, please{ending}"
    if draw < 0.85 and ending == "." and "please" not in question.lower():
        return f"Please {uncapitalised(question)}"
    if draw < 0.88 and ending == ".":
        return f"Can you {uncapitalised(question[:-1])}?"
    if draw < 0.96:
        opening = random.choice(GREETINGS + ANNOUNCEMENTS if ending == "?" else GREETINGS)
        return opening + (question if opening.endswith("! ") else uncapitalised(question))
    return f"{question} {random.choice(('Thanks!', 'Please answer.', 'Do you know?', 'I am curious.'))}"


def uncapitalised(question: str) -> str:
    """Return the question as the second part of a sentence."""
    first = question.split(maxsplit=1)[0].lower()
    return question[0].lower() + question[1:] if first in COMMON_FIRST_WORDS else question
