"""Extract prose from public texts: paragraphs, cleaned and filtered."""

import gzip
import re
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from demo.training.decency import is_decent

BIBLE_BOOKS = ("Ruth", "Psalms", "Proverbs", "Ecclesiastes", "Matthew", "Mark", "Luke", "John")
SPOKEN_TAGS = {"p", "li", "dd", "blockquote"}
SILENT_TAGS = {"pre", "script", "style", "table", "nav", "svg", "h1", "h2", "h3", "h4"}


class _Paragraphs(HTMLParser):
    """Collects the text of paragraphs, without code listings, tables and headings."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._current: list[str] | None = None
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag in SILENT_TAGS:
            self._silent += 1
        elif tag in SPOKEN_TAGS:
            self._finish()
            self._current = []

    def handle_endtag(self, tag: str) -> None:
        if tag in SILENT_TAGS:
            self._silent = max(0, self._silent - 1)
        elif tag in SPOKEN_TAGS:
            self._finish()

    def handle_data(self, data: str) -> None:
        if self._current is not None and not self._silent:
            self._current.append(data)

    def _finish(self) -> None:
        if self._current:
            self.found.append(re.sub(r"\s+", " ", "".join(self._current)).strip())
        self._current = None


def is_prose(paragraph: str) -> bool:
    """Return whether a paragraph consists of sentences, not of code, names or numbers."""
    letters = sum(character.isalpha() or character in " ,.'" for character in paragraph)
    plain = paragraph.isascii() and letters > 0.93 * len(paragraph)
    return 80 < len(paragraph) < 2500 and plain and paragraph[-1] in ".!?" and is_decent(paragraph)


def from_html(folder: Path, pattern: str) -> Iterator[str]:
    """Yield one document per page: its prose paragraphs, separated by blank lines."""
    for page in sorted(folder.glob(pattern)):
        parser = _Paragraphs()
        parser.feed(page.read_text(encoding="utf-8", errors="replace"))
        paragraphs = [straight_quotes(paragraph) for paragraph in parser.found]
        kept = [paragraph for paragraph in paragraphs if is_prose(paragraph)]
        if kept:
            yield "\n\n".join(kept)


def straight_quotes(text: str) -> str:
    """Return the text with plain quotation marks, dashes and spaces."""
    return text.translate(str.maketrans("\u201c\u201d\u2019\u2018\u2014\u2013\xa0", "\"\"''-- ")).replace(
        "\u2026", "..."
    )


def from_bible(program: Path, data: Path) -> Iterator[str]:
    """Yield one document per chapter."""
    for book in BIBLE_BOOKS:
        command = [str(program), "-f", "-l9999", "-p", str(data), f"{book}1:1-{book}150:999"]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        chapters: dict[str, list[str]] = {}
        for line in printed.splitlines():
            found = re.match(r"\w+?(\d+):\d+ (.*)", line)
            if found and is_decent(found.group(2)):
                chapters.setdefault(found.group(1), []).append(re.sub(r"[\[\]{}]", "", found.group(2)))
        for verses in chapters.values():
            yield "\n".join(verse.strip() for verse in verses)


def from_jargon(archive: Path) -> Iterator[str]:
    """Yield one document per entry of the Jargon File."""
    with gzip.open(archive, mode="rt", encoding="utf-8", errors="replace") as opened:
        text = opened.read()
    for paragraph in re.split(r"\n\s*\n", text):
        joined = re.sub(r"[{}_*]", "", straight_quotes(re.sub(r"\s+", " ", paragraph).strip()))
        if is_prose(joined):
            yield joined
