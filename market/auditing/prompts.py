"""What a prompt was, proved: whoever knows a request's keys can show what was sealed in it. Pure.

The voucher names the hash of the sealed request. Its keys open those bytes to one text, and to another only if the
buyer made them so with great care when it sealed them; no seller can.
"""

from dataclasses import dataclass

from market.channels.job import read_wanted
from market.counting.counting import Counting
from market.errors import JobInvalid, RequestNotCounted, SealBroken, StatementInvalid
from market.sealing.agreement import Keys
from market.sealing.request import SEALED_BYTES_MAX, digest_of, open_with


@dataclass(frozen=True, slots=True)
class Shown:
    """A sealed request as it was sent, and the keys that open it: they open no answer and no other request."""

    sealed: bytes
    keys: Keys


def proved_prompt_tokens(request: str, shown: Shown, counting: Counting) -> int:
    """The tokens of the prompt that a voucher's `request` stands for. Takes as long as counting does.

    Raises:
        StatementInvalid: those are not the sealed bytes, not their keys, or what is in them has no count; its
            `field` says which.
    """
    if len(shown.sealed) > SEALED_BYTES_MAX:
        raise StatementInvalid(f"a sealed request has at most {SEALED_BYTES_MAX} bytes", "prompt.sealed")
    if digest_of(shown.sealed) != request:
        raise StatementInvalid("these are not the bytes that the voucher names", "prompt.sealed")
    try:
        body = open_with(shown.sealed, shown.keys)
    except SealBroken as error:
        raise StatementInvalid(f"this key does not open the request: {error}", "prompt.key") from None
    try:
        # Read as sellers read it: two readings of one text could be two prompts.
        return counting.prompt_tokens(read_wanted(body).request)
    except (JobInvalid, RequestNotCounted) as error:
        raise StatementInvalid(f"the request cannot be counted: {error}", "prompt.sealed") from None
