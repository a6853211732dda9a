"""Field types of bodies and queries: those of the service layer, for routes."""

from gateway.admin.fields import Body, Text, Texts, as_cursor, as_ns
from gateway.admin.parameters import Named, OptionalText, PageCursor, PageLimit, Since

__all__ = [
    "Body",
    "Named",
    "OptionalText",
    "PageCursor",
    "PageLimit",
    "Since",
    "Text",
    "Texts",
    "as_cursor",
    "as_ns",
]
