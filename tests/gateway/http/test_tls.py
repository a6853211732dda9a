"""A backend behind TLS: asked when its certificate is trusted, and told nothing when it is not."""

import asyncio
import datetime
import ipaddress
import json
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.dialects.openai import read_request
from gateway.errors import LaneUnreachable
from gateway.lanes.base import Call
from gateway.lanes.relay import relay
from gateway.lanes.upstream import Upstream
from runtime.http.client import Client
from tests.gateway.http.edges import Backend, Writer, question, whole

pytestmark = pytest.mark.anyio

CHAT = json.dumps({"choices": [{"index": 0, "message": {"content": "ok"}}]}).encode()


def own_certificate(folder: Path) -> Path:
    """A key and a certificate for 127.0.0.1 in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "desk")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "desk.pem"
    plain = serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path.write_bytes(secret + certificate.public_bytes(serialization.Encoding.PEM))
    return path


async def test_only_the_trusted_are_asked(tmp_path: Path) -> None:
    async def answer(body: bytes, writer: Writer) -> None:
        writer.write(whole(CHAT))

    path = own_certificate(tmp_path)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(path)
    desk = Backend(answer)
    server = await asyncio.start_server(desk.handle, "127.0.0.1", 0, ssl=served)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    call = Call("req_1", "chat", read_request("chat", question()), question())
    trusting, strict = Client(tls=ssl.create_default_context(cafile=str(path))), Client()
    try:
        for _ in range(2):
            answered = await relay(Upstream("desk", trusting, url), call, call.raw)
            await answered.body.close()
            assert answered.meter.is_complete
        assert desk.connections == 1
        with pytest.raises(LaneUnreachable, match="SSLCertVerificationError"):
            await relay(Upstream("desk", strict, url), call, call.raw)
        assert len(desk.requests) == 2
    finally:
        await trusting.close()
        await strict.close()
        server.close()
        await server.wait_closed()
