"""What a caller may read of the words of machines and programs: faults of operators stay with operators."""

import re

# Folders and files of a machine. Routes of this gateway's API and addresses on the web are no paths.
_PATH = re.compile(
    r"(?<![\w/:.@-])"
    r"(?!/(?:v1|api|admin|accounting|market|console)/)"
    r"(?:~|[A-Za-z]:)?(?:[/\\][\w.@+~-]+){2,}[/\\]?"
)
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b")


def without_internals(text: str) -> str:
    """The text without paths of files and names of environment variables or keys."""
    return _VARIABLE.sub("[name]", _PATH.sub("[path]", text))
