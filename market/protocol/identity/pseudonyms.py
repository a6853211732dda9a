"""Derive a separate buyer's key for every seller, so that sellers cannot tell that they serve the same buyer.

All of them come from one secret, so nothing is stored. A seller always meets the same pseudonym, because credit
and vouchers depend on it. Only the marketplace that certifies a pseudonym knows its owner.
"""

import hmac

from accounting.proofs.signing_key import Signer
from market.errors import IdentityInvalid
from market.protocol.identity.keys import signer_of

_DOMAIN = b"millrace buyer pseudonym\n"
_SECRET_BYTES = 32


def pseudonym_for(secret: bytes, seller_id: str) -> Signer:
    """Return the buyer's key towards this seller. Its fingerprint is the id of an identity that begins with it.

    Raises:
        IdentityInvalid: the secret is not 32 bytes, or the seller has no id.
    """
    if len(secret) != _SECRET_BYTES or not seller_id:
        raise IdentityInvalid("a pseudonym needs a secret of 32 bytes and the id of a seller")
    return signer_of(hmac.digest(secret, _DOMAIN + seller_id.encode(), "sha256"))
