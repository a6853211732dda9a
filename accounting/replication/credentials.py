"""Make the certificate of one process that shares the ledger: new at every start, identified by its fingerprint.

No authority signs it. Each gateway writes its own into the shared database, and trusts only those that it finds
there.
"""

import hashlib
import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from accounting.replication.errors import LeaderAway

PROTOCOL = "millrace-ledger/1"
"""The protocol of a link, negotiated in the handshake. Change the number if frames, events or answers change."""

# The certificate outlives every process. Only its registration ends sooner.
_VALID = timedelta(days=3650)
_CLOCK_SKEW = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Credentials:
    """A private key and its certificate, both PEM. `fingerprint` is the certificate's SHA-256 in hex."""

    key: str
    certificate: str
    fingerprint: str

    def server_context(self, trusted: Iterable[str]) -> ssl.SSLContext:
        """Return a TLS 1.3 context that accepts only clients with the key of one of these certificates (PEM)."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER, trusted)
        context.num_tickets = 0
        return context

    def client_context(self, trusted: str) -> ssl.SSLContext:
        """Return a TLS 1.3 context that accepts only a server with the key of this certificate (PEM), at any
        address.
        """
        return self._context(ssl.PROTOCOL_TLS_CLIENT, [trusted])

    def _context(self, protocol: int, trusted: Iterable[str]) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols([PROTOCOL])
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        # Each certificate is its own authority.
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata="".join(trusted))
        # The library only reads files. Only this user can read the file, and it is deleted at once.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(self.key + self.certificate)
            file.flush()
            context.load_cert_chain(file.name)
        return context


def make_credentials(holder: str) -> Credentials:
    """Make a key and a certificate. `holder` is a name for admins."""
    key, now = Ed25519PrivateKey.generate(), datetime.now(UTC)
    name = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, holder.encode()[:60].decode(errors="ignore") or "?")]
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]),
            critical=False,
        )
        .sign(key, None)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    return Credentials(private.decode(), public.decode(), certificate.fingerprint(hashes.SHA256()).hex())


def peer_fingerprint(link: ssl.SSLSocket) -> str:
    """Return the fingerprint of the peer's certificate after a handshake. Raises LeaderAway if it has none."""
    certificate = link.getpeercert(binary_form=True)
    if not certificate:
        raise LeaderAway("the other end showed no certificate")
    return hashlib.sha256(certificate).hexdigest()


def refuse_other_protocols(link: ssl.SSLSocket) -> None:
    """Check that both ends run the same protocol version. Raises LeaderAway if the other end runs another one."""
    if link.selected_alpn_protocol() != PROTOCOL:
        raise LeaderAway(f"the other end does not speak {PROTOCOL}: gateways that share a ledger need one version")
