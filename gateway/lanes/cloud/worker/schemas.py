"""How large a JSON schema becomes when its references are written out, which litellm does for some providers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

EXPANDED_BYTES_MAX = 2**20
DEPTH_MAX = 100
_NODE_BYTES = 4


class SchemaTooLarge(Exception):
    """The schema would grow beyond the bound, or is nested too deep."""


def expanded_bytes(schema: Any) -> int:
    """Return the approximate length of `schema` as JSON after every reference is replaced by its target.

    A few lines can name each other so that every line doubles what comes before it. Raises SchemaTooLarge.
    """
    expansion = _Expansion(dict(_definitions(schema, 0)))
    expansion.measure(schema, frozenset(), 0)
    return expansion.bytes


@dataclass
class _Expansion:
    """Resolves references as litellm does: by the last part of the path, and without following cycles."""

    definitions: dict[str, Any]
    bytes: int = 0

    def measure(self, node: Any, inside: frozenset[str], depth: int) -> None:
        self.bytes += _NODE_BYTES + (len(node.encode()) if isinstance(node, str) else _NODE_BYTES)
        if self.bytes > EXPANDED_BYTES_MAX or depth > DEPTH_MAX:
            raise SchemaTooLarge
        if isinstance(node, list):
            for item in node:
                self.measure(item, inside, depth + 1)
        elif isinstance(node, dict):
            name = _referred(node)
            if name is None or name in inside or name not in self.definitions:
                for key, value in node.items():
                    self.bytes += len(key.encode())
                    self.measure(value, inside, depth + 1)
            else:
                self.measure(self.definitions[name], inside | {name}, depth + 1)


def _definitions(node: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > DEPTH_MAX:
        raise SchemaTooLarge
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        if isinstance(value, dict | list):
            yield from _definitions(value, depth + 1)
    if isinstance(node, dict):
        for group in ("$defs", "definitions"):
            named = node.get(group)
            if isinstance(named, dict):
                yield from named.items()


def _referred(node: dict[str, Any]) -> str | None:
    reference = node.get("$ref")
    return reference.rpartition("/")[2] if isinstance(reference, str) else None
