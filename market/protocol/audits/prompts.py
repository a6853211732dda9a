"""Prove what a prompt was: a party that knows a request's keys can show what was sealed in it. Pure.

The voucher names the hash of the sealed request. Its keys open those bytes to one text. Only a buyer could have
prepared a second text, with great care when it sealed them; no seller can.
"""

from dataclasses import dataclass

from market.errors import JobInvalid, RequestNotCounted, SealBroken, StatementInvalid
from market.protocol.channels.job import read_job_body
from market.protocol.counting.token_count import Counting
from market.protocol.sealing.agreement import Keys
from market.protocol.sealing.request import SEALED_BYTES_MAX, digest_of, open_with


@dataclass(frozen=True, slots=True)
class Shown:
    """A sealed request as it was sent, and the keys that open it. They open no answer and no other request."""

    sealed: bytes
    keys: Keys


def proved_prompt_tokens(request: str, shown: Shown, counting: Counting) -> int:
    """Return the tokens of the prompt behind a voucher's `request`. Takes as long as counting does.

    Raises:
        StatementInvalid: the bytes or the keys are wrong, or the content has no count; `field` says which.
    """
    if len(shown.sealed) > SEALED_BYTES_MAX:
        raise StatementInvalid(f"a sealed request may have at most {SEALED_BYTES_MAX} bytes", "prompt.sealed")
    if digest_of(shown.sealed) != request:
        raise StatementInvalid("these are not the bytes that the voucher names", "prompt.sealed")
    try:
        body = open_with(shown.sealed, shown.keys)
    except SealBroken as error:
        raise StatementInvalid(f"this key does not open the request: {error}", "prompt.key") from None
    try:
        # Read it as sellers do: two ways of reading one text could give two prompts.
        return counting.prompt_tokens(read_job_body(body).request)
    except (JobInvalid, RequestNotCounted) as error:
        raise StatementInvalid(f"the request cannot be counted: {error}", "prompt.sealed") from None
