"""A small internet on loopback: a public address with a server of ours behind it, names, certificates.

Connections to public addresses lead to the one public server; those to loopback go where they say.
"""

import asyncio
import datetime
import json
import ssl
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpcore
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PUBLIC = "93.184.215.14"
NAME = "seller.example.com"


@dataclass
class Internet(httpcore.AsyncNetworkBackend):
    """Every public address is the machine behind `port`. `dialled` has all addresses that were connected to."""

    port: int = 0
    dialled: list[str] = field(default_factory=list)
    names: dict[str, list[list[str]]] = field(default_factory=dict)
    lookups: list[str] = field(default_factory=list)

    async def resolve(self, host: str, _port: int) -> Sequence[str]:
        """The name's next answer; the last one stays."""
        self.lookups.append(host)
        answers = self.names.get(host)
        if not answers:
            raise OSError("no such name")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.dialled.append(host)
        where = ("127.0.0.1", self.port) if host == PUBLIC else (host, port)
        return await httpcore.AnyIOBackend().connect_tcp(*where, timeout)


class Site:
    """Answers by path, and keeps what it was asked."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.connections = 0
        self.redirect_to = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
                body = await reader.readexactly(int(length or 0))
                await self._answer(head.split()[1].decode(), body, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if path == "/redirect":
            writer.write(_whole(b"", 302, f"location: {self.redirect_to}\r\nset-cookie: a=b\r\n"))
        elif path == "/busy":
            writer.write(_whole(b"later", 429, "retry-after: 7\r\n"))
        elif path == "/endless":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                writer.write(bytes(2**16))
                await writer.drain()
        elif path == "/headers":
            writer.write(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000)
        elif path == "/nonsense":
            writer.write(b"\x00\x01 what\r\n\r\n")
        elif path in ("/silent", "/gap", "/cut"):
            if path != "/silent":
                writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
                await writer.drain()
            if path == "/cut":
                raise ConnectionError
            await asyncio.sleep(3600)
        else:
            writer.write(_whole(json.dumps({"path": path, "body": body.decode()}).encode()))


def _whole(body: bytes, status: int = 200, more: str = "") -> bytes:
    return f"HTTP/1.1 {status} OK\r\ncontent-length: {len(body)}\r\n{more}\r\n".encode() + body


@asynccontextmanager
async def served(site: Site, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port at which a site answers on 127.0.0.1."""
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(site.handle(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What a server of this name shows, and what a client needs to believe it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "site")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    plain = serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shown.load_cert_chain(path)
    return shown, ssl.create_default_context(cafile=str(path))
