"""A Hugging Face hub on loopback: serves folders as repositories, with ETags, ranges and broken connections."""

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """`repositories` maps ids to folders. After `break_after_bytes` of a file the connection is cut, once."""

    repositories: dict[str, Path]
    break_after_bytes: int | None = None
    sent_bytes: dict[str, int] = field(default_factory=dict)
    ranges: list[tuple[str, str]] = field(default_factory=list)

    def __enter__(self) -> "Hub":
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._describe("/".join(parts[2:4]), with_body, as_tree="tree" in parts[4:5])
        elif len(parts) >= 5 and parts[2] == "resolve":
            self._send_file("/".join(parts[:2]), "/".join(parts[4:]), with_body)
        else:
            self._send_error(404, "EntryNotFound")

    def _describe(self, repository: str, with_body: bool, as_tree: bool) -> None:
        folder = self.hub.repositories.get(repository)
        if folder is None:
            self._send_error(404, "RepoNotFound")
            return
        paths = sorted(folder.iterdir())
        if as_tree:
            tree = [{"type": "file", "path": p.name, "size": p.stat().st_size, "oid": _oid(p)} for p in paths]
            self._send_json(tree, with_body)
            return
        files = [{"rfilename": path.name} for path in paths]
        self._send_json({"id": repository, "sha": COMMIT, "siblings": files}, with_body)

    def _send_file(self, repository: str, name: str, with_body: bool) -> None:
        folder = self.hub.repositories.get(repository)
        if folder is None:
            self._send_error(404, "RepoNotFound")
            return
        path = folder / name
        if not path.is_file():
            self._send_error(404, "EntryNotFound")
            return
        content = path.read_bytes()
        begin = 0
        if span := self.headers.get("Range"):
            begin = int(span.removeprefix("bytes=").split("-")[0])
            self.hub.ranges.append((name, span))
        self.send_response(206 if begin else 200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content) - begin))
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if with_body:
            self._send_content(name, content[begin:])

    def _send_content(self, name: str, content: bytes) -> None:
        limit = self.hub.break_after_bytes
        if limit is not None and len(content) > limit:
            self.hub.break_after_bytes = None
            content = content[:limit]
            self.close_connection = True
        self.hub.sent_bytes[name] = self.hub.sent_bytes.get(name, 0) + len(content)
        self.wfile.write(content)
        if self.close_connection:
            self.connection.shutdown(1)

    def _send_json(self, content: object, with_body: bool) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _send_error(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _oid(path: Path) -> str:
    """Git's name of the content, as the hub lists it."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
