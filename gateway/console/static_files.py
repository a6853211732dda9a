"""Files that pages load: read once and versioned by content, so that browsers may cache them forever."""

import gzip
import mimetypes
import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from fastapi import APIRouter, Request, Response
from markupsafe import Markup

from runtime.errors import NotFound

ROOT = Path(__file__).parent / "static"
PATH = "/console/static"
_FOREVER = "public, max-age=31536000, immutable"
_ICONS = "vendor/lucide"
_COMPRESSED = ("text/", "application/json", "image/svg")
_REFERENCE = re.compile(r'url\("([a-z][^":]*)"\)')
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".woff2": "font/woff2"}

router = APIRouter()


@dataclass(frozen=True, slots=True)
class StaticFile:
    body: bytes
    zipped: bytes
    """The body compressed; empty if compression saves nothing."""
    version: str
    kind: str


@cache
def _names() -> frozenset[str]:
    """Return the names that can be requested; no other path reaches the disk."""
    return frozenset(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if path.is_file())


@cache
def find(name: str) -> StaticFile:
    """Return a file. Raises LookupError."""
    if name not in _names():
        raise LookupError(f"no file {name} under {ROOT.name}/")
    path = ROOT / name
    body = path.read_bytes()
    if path.suffix == ".css":
        body = _with_versions(body.decode(), path).encode()
    kind = _TYPES.get(path.suffix) or mimetypes.guess_type(name)[0] or "text/plain"
    zipped = gzip.compress(body, 9, mtime=0) if kind.startswith(_COMPRESSED) else b""
    return StaticFile(body, zipped, sha256(body).hexdigest()[:12], kind)


def url_of(name: str) -> str:
    """Return a file's address with the version of its content. Raises LookupError."""
    return f"{PATH}/{name}?v={find(name).version}"


@cache
def icon(name: str, title: str = "") -> Markup:
    """Return a vendored drawing for use inside a page. Screen readers skip it unless it has a title.

    Raises LookupError.
    """
    drawing = find(f"{_ICONS}/{name}.svg").body.decode().partition("-->")[2]
    shape = " ".join(drawing.partition(">")[2].rpartition("</svg>")[0].split())
    label = Markup('role="img" aria-label="{}"').format(title) if title else Markup('aria-hidden="true"')
    return Markup(
        '<svg class="mr-icon" viewBox="0 0 24 24" width="16" height="16" fill="none" stroke="currentColor" '
        'stroke-width="2" stroke-linecap="round" stroke-linejoin="round" {}>{}</svg>'
    ).format(label, Markup(shape))  # noqa: S704 - a bundled file


@router.get(f"{PATH}/{{name:path}}")
async def static_file(request: Request, name: str) -> Response:
    """Serve a file. Raises NotFound."""
    try:
        found = find(name)
    except LookupError:
        raise NotFound("File not found.") from None
    is_named = request.query_params.get("v") == found.version
    headers = {
        "cache-control": _FOREVER if is_named else "no-cache",
        "etag": f'"{found.version}"',
        "vary": "accept-encoding",
        "x-content-type-options": "nosniff",
    }
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    if found.zipped and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.zipped, headers=headers | {"content-encoding": "gzip"}, media_type=found.kind)
    return Response(found.body, headers=headers, media_type=found.kind)


def _with_versions(text: str, path: Path) -> str:
    """Add versions to the relative addresses in a style sheet."""

    def versioned(match: re.Match[str]) -> str:
        name = (path.parent / match[1]).relative_to(ROOT).as_posix()
        return f'url("{url_of(name)}")'

    return _REFERENCE.sub(versioned, text)
