"""Builds the training corpus: fetches the sources, writes dialogues and prose, trains the tokenizer, encodes.

python -m demo.training.corpus --out demo/training/.corpus
"""

import argparse
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
from tokenizers import Tokenizer

from demo.training import exercises, prose, sources, tales, word_questions
from demo.training.conversations import Conversations, Maker
from demo.training.exchanges import Entry, Exchange, Table, parse
from demo.training.lexicon import Lexicon
from demo.training.phrases import TEXT
from demo.training.vocabulary import END_OF_TEXT, save_tokenizer, train_tokenizer

CHAT, PROSE = 0, 1
HELD_OUT_ONE_IN = 80


@dataclass(frozen=True, slots=True)
class Stream:
    """One kind of document, its share of all characters, and how to draw one more."""

    name: str
    kind: int
    share: float
    draw: Callable[[Random], str]


@dataclass(frozen=True, slots=True)
class Document:
    """One conversation or one piece of prose."""

    text: str
    kind: int


def own_text() -> tuple[list[Entry], list[Table]]:
    """Return everything in text/."""
    entries, tables = [], []
    for path in sorted(TEXT.glob("*.txt")):
        more_entries, more_tables = parse(path)
        entries += more_entries
        tables += more_tables
    return entries, tables


def words_explained(entries: list[Entry], tables: list[Table]) -> frozenset[str]:
    """Return words that our own text explains, which the dictionary need not explain."""
    topics = [topic for entry in entries for topic in entry.topics]
    topics += [
        q[len(start) : -1]
        for entry in entries
        for q in entry.questions
        for start in ("What is ", "What are ")
        if q.startswith(start)
    ]
    topics += [cell for table in tables for row in table.rows for cell in list(row.values())[:2]]
    bare = (re.sub(r"^(an?|the) ", "", topic).lower() for topic in topics)
    return frozenset(word for word in bare if word.count(" ") <= 1)


def entry_maker(entries: list[Entry]) -> Callable[[Random], Exchange]:
    """Return a maker that draws every entry equally often, and those with many questions somewhat more."""
    weights = [(len(entry.questions) + 4 * len(entry.topics)) ** 0.5 for entry in entries]
    return lambda random: random.choices(entries, weights)[0].draw(random)


def table_maker(tables: list[Table]) -> Callable[[Random], Exchange]:
    """Return a maker that draws large tables more often than small ones."""
    weights = [(len(table.rows) * len(table.entries)) ** 0.75 for table in tables]
    return lambda random: random.choices(tables, weights)[0].draw(random)


def passages(documents: list[str], longest: int) -> list[str]:
    """Cut long documents at paragraphs, so that every part can be drawn."""
    parts = []
    for document in documents:
        part = ""
        for paragraph in document.split("\n\n"):
            if part and len(part) + len(paragraph) > longest:
                parts.append(part)
                part = ""
            part = f"{part}\n\n{paragraph}" if part else paragraph
        parts.append(part)
    return parts


def cycle(documents: list[str]) -> Callable[[Random], str]:
    """Draw every document once in a random order, then again in another."""
    order: list[str] = []

    def draw(random: Random) -> str:
        if not order:
            order.extend(random.sample(documents, len(documents)))
        return order.pop()

    return draw


def fact_paragraphs(entries: list[Entry], tables: list[Table]) -> Callable[[Random], str]:
    """Return a maker of prose from our own answers: some about one row of a table, some about various things."""
    told = [list(dict.fromkeys(facts)) for table in tables for facts in table.statements()]
    answers = [entry.answer for entry in entries if entry.topics or len(entry.answer) > 150]

    def draw(random: Random) -> str:
        if random.random() < 0.4:
            return "\n\n".join(random.sample(answers, random.randint(1, 5)))
        return " ".join(fact for facts in random.sample(told, random.randint(1, 3)) for fact in facts)

    return draw


def several(draw: Callable[[Random], str]) -> Callable[[Random], str]:
    """Join a few texts of the same kind into one document."""
    return lambda random: " ".join(draw(random) for _ in range(random.randint(3, 9)))


def streams(scratch: Path) -> list[Stream]:
    """Return all kinds of documents with their shares."""
    entries, tables = own_text()
    lexicon = Lexicon(
        sources.root(scratch, "wordnet-base") / "usr/share/wordnet", words_explained(entries, tables)
    )
    ask_entries, ask_tables = entry_maker(entries), table_maker(tables)
    ask_word = partial(word_questions.ask, lexicon)
    mixed: list[tuple[float, Maker]] = [
        (4.0, ask_entries),
        (2.2, ask_tables),
        (1.6, exercises.draw),
        (2.2, ask_word),
        (0.25, tales.draw),
    ]

    def chat(makers: list[tuple[float, Maker]]) -> Callable[[Random], str]:
        conversations = Conversations(makers)
        return lambda random: conversations.draw(random).render()

    def public(documents: Iterator[str]) -> Callable[[Random], str]:
        return cycle(passages(list(documents), 3500))

    manual = sources.root(scratch, "sqlite3-doc") / "usr/share/doc/sqlite3"
    book = sources.root(scratch, "rust-doc") / "usr/share/doc/rust-doc/html/book"
    jargon = sources.root(scratch, "jargon-text") / "usr/share/doc/jargon-text/jargon.txt.gz"
    bible = sources.root(scratch, "bible-kjv") / "usr/bin/bible"
    verses = sources.root(scratch, "bible-kjv-text") / "usr/lib"
    return [
        Stream("conversations of all kinds", CHAT, 0.26, chat(mixed)),
        Stream("conversations: own entries", CHAT, 0.14, chat([(1.0, ask_entries)])),
        Stream("conversations: own tables", CHAT, 0.09, chat([(1.0, ask_tables)])),
        Stream("conversations: exercises", CHAT, 0.09, chat([(1.0, exercises.draw)])),
        Stream("conversations: WordNet", CHAT, 0.13, chat([(1.0, ask_word)])),
        Stream("conversations: tales", CHAT, 0.06, chat([(1.0, tales.draw)])),
        Stream("prose: tales", PROSE, 0.05, tales.short_or_long),
        Stream("prose: own facts", PROSE, 0.03, fact_paragraphs(entries, tables)),
        Stream("prose: word articles (WordNet)", PROSE, 0.025, several(partial(word_questions.article, lexicon))),
        Stream("prose: example sentences (WordNet)", PROSE, 0.02, several(lexicon.sentence)),
        Stream("prose: SQLite documentation", PROSE, 0.045, public(prose.from_html(manual, "*.html"))),
        Stream("prose: The Rust Programming Language", PROSE, 0.025, public(prose.from_html(book, "ch*.html"))),
        Stream("prose: Jargon File", PROSE, 0.02, public(prose.from_jargon(jargon))),
        Stream("prose: King James Bible", PROSE, 0.015, public(prose.from_bible(bible, verses))),
    ]  # fmt: skip


def write_documents(
    parts: list[Stream], characters: int, random: Random
) -> tuple[list[Document], dict[str, dict[str, int]]]:
    """Draw documents until every stream has its share. Return them, and the size of each stream."""
    documents: list[Document] = []
    sizes = {}
    for part in parts:
        written = drawn = 0
        distinct: set[int] = set()
        while written < part.share * characters:
            text = part.draw(random)
            documents.append(Document(text, part.kind))
            distinct.add(hash(text))
            written += len(text)
            drawn += 1
        sizes[part.name] = {"documents": drawn, "distinct": len(distinct), "characters": written}
        print(
            f"{part.name}: {drawn} documents ({len(distinct)} distinct), {written / 1e6:.1f} M characters",
            flush=True,
        )
    random.shuffle(documents)
    return documents, sizes


def encode(tokenizer: Tokenizer, documents: list[Document], path: Path) -> dict[str, int | str]:
    """Write token ids, the start of every document and its kind. Equal texts are held out together."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids: list[np.ndarray] = []
    for first in range(0, len(documents), 10_000):
        batch = [document.text for document in documents[first : first + 10_000]]
        ids.extend(np.array([*encoded.ids, end], dtype=np.uint16) for encoded in tokenizer.encode_batch(batch))
    lengths = np.array([len(document) for document in ids], dtype=np.int64)
    kinds = np.array([document.kind for document in documents], dtype=np.uint8)
    digests = [hashlib.sha256(document.text.encode()).digest() for document in documents]
    held_out = np.array([int.from_bytes(digest[:4]) % HELD_OUT_ONE_IN == 0 for digest in digests])
    joined = np.concatenate(ids)
    np.savez_compressed(path, ids=joined, lengths=lengths, kinds=kinds, held_out=held_out)
    return {
        "documents": len(documents),
        "tokens": int(lengths.sum()),
        "held_out_documents": int(held_out.sum()),
        "sha256": hashlib.sha256(joined.tobytes()).hexdigest(),
    }


def main() -> None:
    """Build the corpus from scratch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo/training/.corpus"), help="folder for the result")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/millrace-corpus"), help="folder for packages")
    parser.add_argument("--characters", type=int, default=130_000_000, help="size of the corpus")
    parser.add_argument("--vocabulary", type=int, default=4096, help="tokens in the vocabulary")
    parser.add_argument("--seed", type=int, default=20)
    arguments = parser.parse_args()
    started = time.monotonic()
    random = Random(arguments.seed)
    versions = sources.fetch(arguments.scratch)
    documents, sizes = write_documents(streams(arguments.scratch), arguments.characters, random)
    arguments.out.mkdir(parents=True, exist_ok=True)
    sample = [document.text for document in documents[: len(documents) // 4]]
    tokenizer = train_tokenizer(sample, arguments.vocabulary)
    save_tokenizer(tokenizer, arguments.out)
    encoded = encode(tokenizer, documents, arguments.out / "corpus.npz")
    used = {
        source.package: {"version": versions[source.package], "licence": source.licence, "use": source.use}
        for source in sources.SOURCES
    }
    about = {"seed": arguments.seed, **encoded, "streams": sizes, "packages": used}
    (arguments.out / "corpus.json").write_text(json.dumps(about, indent=2) + "\n")
    print(f"{encoded['tokens']} tokens in {encoded['documents']} documents, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
