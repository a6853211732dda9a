"""The cluster's certificate authority: a join token, used once, turns a machine's key into a certificate."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cluster.errors import MachineRemoved, PeerRejected
from cluster.trust.identity import (
    AUTHORITY_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    Identity,
    NodeId,
    Role,
    identity_uri,
)
from cluster.trust.machines import MachineBook
from runtime.files import replace_file

TOKEN_TTL_S = 15 * 60
TOKENS_MAX = 1000

# Renewed when a third of this time is left: a machine that was off for less than ten days need not join again.
CERTIFICATE_S = 30 * 24 * 3600.0
CLOCK_SKEW = timedelta(hours=1)

_AUTHORITY_YEARS = 10
# Machines from before the book of machines existed hold certificates for a year.
_UNKNOWN_S = 366 * 24 * 3600.0
_TOKEN_PREFIX = "mrj"  # noqa: S105 - a mark that users recognize, not a secret


class _Invitation(msgspec.Struct):
    """A stored join token, by the hash of its secret. With `aside` the machine is admitted drained."""

    expires_s: float
    used_by: str = ""
    aside: bool = False


def certificate_life() -> timedelta:
    """Return the lifetime of a machine's certificate."""
    return timedelta(seconds=CERTIFICATE_S)


def new_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


def node_id_of(key: Ed25519PublicKey) -> NodeId:
    """Return the id of the machine with this public key."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return NodeId(hashlib.sha256(raw).hexdigest()[:32])


def signing_request(key: Ed25519PrivateKey, name: str) -> str:
    """Return the PEM of a request to certify `key`. The authority takes only the key and the name from it."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_subject(name))
    return builder.sign(key, None).public_bytes(serialization.Encoding.PEM).decode()


def fingerprint(certificate_pem: str) -> str:
    """Return the SHA-256 of a certificate, shortened to 32 hex digits for tokens."""
    certificate = x509.load_pem_x509_certificate(certificate_pem.encode())
    return certificate.fingerprint(hashes.SHA256()).hex()[:32]


def read_token(token: str) -> tuple[str, str]:
    """Return the authority fingerprint and the secret of a join token. Raise PeerRejected if it is not a token."""
    prefix, _, rest = token.strip().partition(".")
    pinned, _, secret = rest.partition(".")
    if prefix != _TOKEN_PREFIX or len(pinned) != 32 or not secret:
        raise PeerRejected(
            "this is not a join token of a Millrace cluster. Tokens look like mrj.<32 digits>.<secret>."
        )
    return pinned, secret


def save_identity(folder: Path, key: Ed25519PrivateKey, certificate_pem: str, authority_pem: str) -> Identity:
    """Write an identity's three files. Only the file's owner can read the key."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(folder / KEY_FILE, _private_pem(key))
    replace_file(folder / CERTIFICATE_FILE, certificate_pem, mode=0o644)
    replace_file(folder / AUTHORITY_FILE, authority_pem, mode=0o644)
    return Identity(folder)


@dataclass(slots=True)
class Authority:
    """Signs certificates and stores join tokens and machines. Only one process writes its folder.

    `clock` gives seconds since the epoch.
    """

    folder: Path
    key: Ed25519PrivateKey
    certificate: x509.Certificate
    machines: MachineBook
    clock: Callable[[], float] = time.time
    _invitations: dict[str, _Invitation] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, clock: Callable[[], float] = time.time) -> "Authority":
        """Load the authority of `folder`, or create one there. `clock` gives seconds since the epoch."""
        if not (folder / KEY_FILE).is_file():
            _create_authority(folder)
        key = serialization.load_pem_private_key((folder / KEY_FILE).read_bytes(), None)
        assert isinstance(key, Ed25519PrivateKey)
        certificate = x509.load_pem_x509_certificate((folder / AUTHORITY_FILE).read_bytes())
        machines = MachineBook.open(folder / "machines.json", clock)
        authority = cls(folder, key, certificate, machines, clock)
        if authority._book.is_file():
            authority._invitations = msgspec.json.decode(authority._book.read_bytes(), type=dict[str, _Invitation])
        return authority

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def fingerprint(self) -> str:
        """The fingerprint by which join tokens name this cluster."""
        return fingerprint(self.certificate_pem)

    @property
    def _book(self) -> Path:
        return self.folder / "invitations.json"

    def issue_identity(self, folder: Path, role: Role, name: str) -> Identity:
        """Create a key and certificate for a process of this machine, in `folder`."""
        key = new_key()
        return save_identity(folder, key, self._certify(key.public_key(), role, name), self.certificate_pem)

    def new_token(self, ttl_s: float = TOKEN_TTL_S, *, aside: bool = False) -> str:
        """Return a token that lets one machine join within `ttl_s` seconds. Only its hash is stored.

        With `aside` the machine is admitted drained: no plan uses it until an admin has looked at it. Raise
        PeerRejected if too many tokens are outstanding.
        """
        now_s = self.clock()
        live = {
            digest: invitation
            for digest, invitation in self._invitations.items()
            if invitation.expires_s > now_s - TOKEN_TTL_S
        }
        if len(live) >= TOKENS_MAX:
            raise PeerRejected(f"{TOKENS_MAX} join tokens are outstanding. Wait until some expire.")
        secret = secrets.token_urlsafe(24)
        live[_digest(secret)] = _Invitation(now_s + ttl_s, aside=aside)
        self._invitations = live
        self._save_book()
        return f"{_TOKEN_PREFIX}.{fingerprint(self.certificate_pem)}.{secret}"

    def enrol(self, token: str, request_pem: str) -> tuple[str, NodeId]:
        """Return the certificate (PEM) and id of a machine with a valid token, and use the token up.

        Raise PeerRejected for a wrong, used or expired token, or for a request that does not verify. Raise
        MachineRemoved if the machine was removed.
        """
        _, secret = read_token(token)
        invitation = self._invitations.get(_digest(secret))
        if invitation is None:
            raise PeerRejected(
                "this cluster did not issue this join token. Check it, or create one with `millrace token create`."
            )
        if invitation.used_by:
            raise PeerRejected(
                f"join token was already used, by machine {invitation.used_by}. "
                "Create one with `millrace token create`."
            )
        if invitation.expires_s < self.clock():
            raise PeerRejected("join token has expired. Create one with `millrace token create`.")
        key, name = _read_request(request_pem)
        node_id = node_id_of(key)
        if node_id in self.machines.removed:
            raise MachineRemoved(node_id)
        invitation.used_by = node_id
        self._save_book()
        certificate_pem = self._certify_node(key, name)
        if invitation.aside:
            self.machines.drain(node_id, draining=True)
        return certificate_pem, node_id

    def renew(self, node_id: NodeId, request_pem: str) -> str:
        """Return a new certificate (PEM) for a machine that asks over a connection opened with its old one.

        Raise PeerRejected if the request is for another key, and MachineRemoved if the machine was removed.
        """
        key, name = _read_request(request_pem)
        if node_id_of(key) != node_id:
            raise PeerRejected("a certificate can only be renewed for its own key")
        if node_id in self.machines.removed:
            raise MachineRemoved(node_id)
        return self._certify_node(key, name)

    def renew_own(self, request_pem: str, role: Role) -> str:
        """Return a new certificate (PEM) for a process of this machine."""
        key, name = _read_request(request_pem)
        return self._certify(key, role, name)

    def note(self, node_id: NodeId, name: str) -> None:
        """Note that a machine is here. Machines from before the book existed are added to it."""
        self.machines.note_present(node_id, name, self.clock() + _UNKNOWN_S)

    def _certify_node(self, key: Ed25519PublicKey, name: str) -> str:
        self.machines.certified(node_id_of(key), name, self.clock() + CERTIFICATE_S)
        return self._certify(key, "node", name)

    def _certify(self, key: Ed25519PublicKey, role: Role, name: str) -> str:
        now = datetime.now(UTC)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        uri = x509.UniformResourceIdentifier(identity_uri(node_id_of(key), role))
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_subject(name))
            .issuer_name(self.certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(now + certificate_life())
            .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
            .sign(self.key, None)
        )
        return certificate.public_bytes(serialization.Encoding.PEM).decode()

    def _save_book(self) -> None:
        replace_file(self._book, msgspec.json.encode(self._invitations))


def _create_authority(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key, now = new_key(), datetime.now(UTC)
    subject = _subject("Millrace cluster authority")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=365 * _AUTHORITY_YEARS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_SIGNING_ONLY, critical=True)
        .sign(key, None)
    )
    replace_file(
        folder / AUTHORITY_FILE, certificate.public_bytes(serialization.Encoding.PEM).decode(), mode=0o644
    )
    # The key comes last: a folder with a key is a complete authority.
    replace_file(folder / KEY_FILE, _private_pem(key))


_SIGNING_ONLY = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def _read_request(request_pem: str) -> tuple[Ed25519PublicKey, str]:
    try:
        request = x509.load_pem_x509_csr(request_pem.encode())
    except ValueError:
        raise PeerRejected("signing request cannot be read") from None
    key = request.public_key()
    if not isinstance(key, Ed25519PublicKey):
        raise PeerRejected("signing request must carry an Ed25519 key")
    try:
        if not request.is_signature_valid:
            raise PeerRejected("signing request is not signed by its own key")
    except InvalidSignature:
        raise PeerRejected("signing request is not signed by its own key") from None
    names = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return key, str(names[0].value) if names else "node"


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _shortened(name) or "node")])


def _shortened(name: str) -> str:
    """Return the first 64 bytes of the name in UTF-8, the longest common name that X.509 allows."""
    return name.encode()[:64].decode(errors="ignore")


def _digest(secret: str) -> str:
    return hmac.new(b"millrace join token", secret.encode(), hashlib.sha256).hexdigest()


def _private_pem(key: Ed25519PrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
