"""The identity of a process: key, certificate, TLS contexts that demand the same of peers, removed machines."""

import contextlib
import json
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NewType

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from cluster.errors import MachineRemoved, PeerRejected
from runtime.files import replace_file

NodeId = NewType("NodeId", str)
"""First 32 hex digits of the SHA-256 of a machine's public key. It survives restarts and address changes."""

Role = Literal["node", "gateway"]
ROLES: dict[str, Role] = {"node": "node", "gateway": "gateway"}

KEY_FILE = "key.pem"
CERTIFICATE_FILE = "certificate.pem"
AUTHORITY_FILE = "authority.pem"
REMOVED_FILE = "removed.json"

_URI_PREFIX = "millrace:"


@dataclass(frozen=True, slots=True)
class Peer:
    """The identity at the other end of a connection."""

    node_id: NodeId
    role: Role


@dataclass(frozen=True, slots=True)
class Identity:
    """A folder that holds a private key, its certificate and the cluster's authority."""

    folder: Path
    # Removed machines that could not be stored because the disk was full.
    _unwritten: set[NodeId] = field(default_factory=set, repr=False, compare=False)

    @property
    def exists(self) -> bool:
        return all((self.folder / name).is_file() for name in (KEY_FILE, CERTIFICATE_FILE, AUTHORITY_FILE))

    def server_context(self, *, certificate_needed: bool = True) -> ssl.SSLContext:
        """Return a TLS 1.3 context. A peer's certificate must come from this cluster's authority.

        Only the joining port passes `certificate_needed=False`, because a new machine has no certificate.
        """
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED if certificate_needed else ssl.CERT_OPTIONAL
        # Links are never resumed, and the peer that would read a session ticket only writes.
        context.num_tickets = 0
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return a TLS 1.3 context that demands a certificate of this cluster's authority."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        # Addresses on a home network change; the certificate's identity decides instead of the host name.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def removed(self) -> frozenset[NodeId]:
        """Return the machines that the controller has removed.

        It reads the file, since the agent writes it for its children.
        """
        try:
            return frozenset(self._unwritten).union(json.loads((self.folder / REMOVED_FILE).read_bytes()))
        except FileNotFoundError:
            return frozenset(self._unwritten)

    def keep_removed(self, node_ids: Iterable[NodeId]) -> None:
        """Refuse these machines in all processes with this identity, from now on.

        Raise OSError if the list cannot be stored; this process then refuses them all the same.
        """
        node_ids = frozenset(node_ids)
        self._unwritten.clear()
        self._unwritten.update(node_ids)
        replace_file(self.folder / REMOVED_FILE, json.dumps(sorted(node_ids)), mode=0o644)
        self._unwritten.clear()

    def admit(self, link: ssl.SSLSocket | ssl.SSLObject) -> Peer:
        """Return the peer of a finished handshake.

        Raise PeerRejected if it is invalid, MachineRemoved if it was removed.
        """
        peer = read_peer(link)
        if peer.node_id in self.removed():
            raise MachineRemoved(peer.node_id)
        return peer

    def derive_key(self, purpose: str) -> bytes:
        """Return 32 secret bytes for this purpose, the same as long as the machine has its key. Raise OSError."""
        secret = (self.folder / KEY_FILE).read_bytes()
        return HKDF(hashes.SHA256(), 32, salt=None, info=f"millrace {purpose}".encode()).derive(secret)

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.folder / CERTIFICATE_FILE, self.folder / KEY_FILE)
        context.load_verify_locations(self.folder / AUTHORITY_FILE)
        return context


class ServerContexts:
    """A listener's TLS context, which is replaced after the certificate was renewed. Open links stay."""

    def __init__(self, identity: Identity, *, certificate_needed: bool = True) -> None:
        self._identity = identity
        self._certificate_needed = certificate_needed
        self._stamp = self._now()
        self._context = identity.server_context(certificate_needed=certificate_needed)

    @property
    def current(self) -> ssl.SSLContext:
        """The context for the next handshake. Any thread may call this."""
        # The old certificate goes on serving while the folder cannot be read.
        with contextlib.suppress(OSError):
            stamp = self._now()
            if stamp != self._stamp:
                self._context = self._identity.server_context(certificate_needed=self._certificate_needed)
                self._stamp = stamp
        return self._context

    def _now(self) -> int:
        return (self._identity.folder / CERTIFICATE_FILE).stat().st_mtime_ns


def identity_uri(node_id: NodeId, role: Role) -> str:
    """Return a certificate's subject alternative name for this holder."""
    return f"{_URI_PREFIX}{role}:{node_id}"


def read_peer(link: ssl.SSLSocket | ssl.SSLObject) -> Peer:
    """Return the peer of a finished handshake. Raise PeerRejected if its certificate names no identity."""
    certificate = link.getpeercert()
    if not certificate:
        raise PeerRejected("peer showed no certificate")
    for name in certificate.get("subjectAltName", ()):
        kind, value = name[0], str(name[1])
        if kind == "URI" and value.startswith(_URI_PREFIX):
            role, _, node_id = value.removeprefix(_URI_PREFIX).partition(":")
            if node_id and role in ROLES:
                return Peer(NodeId(node_id), ROLES[role])
    raise PeerRejected("peer's certificate names no Millrace identity")
