"""Count what makes the code hard to read, and fail if a count is beyond its limit: `python .ci/structure.py`.

Upper limits only ever go down, lower limits only ever go up.
"""

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import docstrings

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("accounting", "cluster", "gateway", "market", "runtime")

ARCHAIC = re.compile(
    r"\b(nobody|whoever|whomever|somebody|anew|put aside|besides|whence|thereof|of whom|so many|so much|hears?"
    r"|heed|lest|ours|theirs|owner's own)\b",
    re.IGNORECASE,
)
"""Words and phrases that CONTRIBUTING.md replaces."""

NOUNS_IN_ING = {
    "accounting", "batching", "billing", "caching", "embedding", "hedging", "logging", "metering", "pricing",
    "ring", "routing", "scheduling", "sealing", "streaming", "string", "tracing",
}  # fmt: skip

LIMITS = {
    "archaic words in code": 50,
    "archaic words in docs and templates": 10,
    "class names of three or more classes": 5,
    "modules named by a gerund": 15,
    "folders in an import cycle": 0,
    "lines of pages over 120 columns": 0,
    "pages of long sentences": 0,
    "words of docs/architecture.md": 1_500,
}
PERCENT_MIN = {f"docstrings that name {kind}": 90 for kind in docstrings.KINDS}

COLUMNS_MAX, SENTENCE_WORDS_MAX = 120, 25
"""Of a line of a page, and of its average sentence."""


def main() -> None:
    """Print incomplete docstrings and every count with its limit; exit with 1 if a limit is broken."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    texts = {path: path.read_text() for path in files}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "gateway").rglob("templates/**/*.html")]
    classes = Counter(
        node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    counts = {
        "archaic words in code": sum(len(ARCHAIC.findall(text)) for text in texts.values()),
        "archaic words in docs and templates": sum(len(ARCHAIC.findall(page.read_text())) for page in pages),
        "class names of three or more classes": sum(count > 2 for count in classes.values()),
        "modules named by a gerund": sum(
            path.stem.endswith("ing") and path.stem not in NOUNS_IN_ING for path in files
        ),
        "folders in an import cycle": sum(len(cycle) for cycle in _cycles(trees)),
    }
    counts |= _pages()
    documented = docstrings.examine({path.relative_to(ROOT): tree for path, tree in trees.items()})
    shares = {f"docstrings that name {kind}": documented.percent(kind) for kind in docstrings.KINDS}
    above = [name for name, count in counts.items() if count > LIMITS[name]]
    below = [name for name, share in shares.items() if share < PERCENT_MIN[name]]
    for line in chain(*documented.lacking.values()):
        sys.stdout.write(f"{line}\n")
    for name, count in counts.items():
        verdict = "  ABOVE ITS LIMIT" if name in above else ""
        sys.stdout.write(f"{name}: {count} (limit {LIMITS[name]}){verdict}\n")
    for name, share in shares.items():
        verdict = "  BELOW ITS LIMIT" if name in below else ""
        sys.stdout.write(f"{name}: {share} % (at least {PERCENT_MIN[name]} %){verdict}\n")
    sys.exit(bool(above or below))


def _pages() -> dict[str, int]:
    """Counts of what makes pages hard to read; tables, code and links cannot be wrapped and do not count."""
    pages = {path: path.read_text() for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))}
    long_lines, long_sentences = 0, 0
    for text in pages.values():
        lines = list(_prose(text))
        long_lines += sum(len(line) > COLUMNS_MAX for line in lines if not re.search(r"!\[|\]\([^)]+\)|://", line))
        # A list item, a heading and a paragraph end a sentence even if they have no full stop.
        prose = re.sub(r"\n(?=\s*(?:[-*]|\d+\.) )|\n\s*\n|\n#.*", "\n. ", "\n".join(lines))
        words = [len(re.findall(r"\w[\w'/.-]*", each)) for each in re.split(r"[.!?][)*_`]*\s", f"{prose}\n")]
        sentences = [count for count in words if count]
        long_sentences += bool(sentences) and sum(sentences) > SENTENCE_WORDS_MAX * len(sentences)
    return {
        "lines of pages over 120 columns": long_lines,
        "pages of long sentences": long_sentences,
        "words of docs/architecture.md": len(pages[ROOT / "docs" / "architecture.md"].split()),
    }


def _prose(text: str) -> Iterator[str]:
    """The lines of a page without its tables and code; an empty line stands for a block of them."""
    is_fenced, is_list = False, False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            is_fenced = not is_fenced
        is_list = bool(re.match(r"\s*(?:[-*]|\d+\.) ", line)) or (is_list and (not line or line.startswith(" ")))
        is_code = is_fenced or line.lstrip().startswith(("```", "|")) or (line.startswith("    ") and not is_list)
        yield "" if is_code else line


def _cycles(trees: dict[Path, ast.Module]) -> Iterator[set[str]]:
    """Sets of folders that import one another, in one package; lazy and type-only imports count."""
    names = {path: _module(path) for path in trees}
    known = set(names.values())
    imports: defaultdict[str, set[str]] = defaultdict(set)
    for path, tree in trees.items():
        here = names[path]
        for target in _targets(tree, known):
            if target.split(".")[0] == here.split(".")[0] and "." in here and "." in target:
                imports[_folder(here)].add(_folder(target))
    reached = {folder: _reached(folder, imports) for folder in list(imports)}
    seen: set[str] = set()
    for folder, others in reached.items():
        cycle = {other for other in others if other != folder and folder in reached.get(other, ())}
        if cycle and folder not in seen:
            seen |= cycle | {folder}
            yield cycle | {folder}


def _targets(tree: ast.Module, known: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in known else node.module


def _reached(folder: str, imports: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = [folder]
    while left:
        for other in imports.get(left.pop(), ()):
            if other not in found:
                found.add(other)
                left.append(other)
    return found


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _folder(module: str) -> str:
    return ".".join(module.split(".")[:2])


if __name__ == "__main__":
    main()
