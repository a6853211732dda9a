"""Who a process of the cluster is: key, certificate, and TLS contexts that demand the same of peers."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NewType

from cluster.errors import PeerRejected

NodeId = NewType("NodeId", str)
"""First 32 hex digits of the SHA-256 of a machine's public key: it outlives restarts and address changes."""

Role = Literal["node", "gateway"]
ROLES: dict[str, Role] = {"node": "node", "gateway": "gateway"}

KEY_FILE = "key.pem"
CERTIFICATE_FILE = "certificate.pem"
AUTHORITY_FILE = "authority.pem"

_URI_PREFIX = "millrace:"


@dataclass(frozen=True, slots=True)
class Identity:
    """A folder that holds a private key, the certificate for it and the cluster's authority."""

    folder: Path

    @property
    def exists(self) -> bool:
        return all((self.folder / name).is_file() for name in (KEY_FILE, CERTIFICATE_FILE, AUTHORITY_FILE))

    def server_context(self, *, certificate_needed: bool = True) -> ssl.SSLContext:
        """TLS 1.3 only; a peer's certificate must come from this cluster's authority.

        Only the joining door passes `certificate_needed=False`: a new machine has none yet.
        """
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED if certificate_needed else ssl.CERT_OPTIONAL
        # Our links are never resumed, and a ticket would be read by a side that only ever writes.
        context.num_tickets = 0
        return context

    def client_context(self) -> ssl.SSLContext:
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        # Addresses on a home network change; who answers is decided by the certificate's identity instead.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.folder / CERTIFICATE_FILE, self.folder / KEY_FILE)
        context.load_verify_locations(self.folder / AUTHORITY_FILE)
        return context


@dataclass(frozen=True, slots=True)
class Peer:
    node_id: NodeId
    role: Role


def identity_uri(node_id: NodeId, role: Role) -> str:
    """What a certificate's subject alternative name says of its holder."""
    return f"{_URI_PREFIX}{role}:{node_id}"


def read_peer(link: ssl.SSLSocket | ssl.SSLObject) -> Peer:
    """Who is at the other end of a finished handshake. Raises PeerRejected when the certificate does not say."""
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
