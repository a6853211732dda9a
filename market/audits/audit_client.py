"""An audit's request to one listing, through the buyer's process: sealed, vouched for and paid like any other."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import httpx

from market.audits.audit_target import AUDIT_ID

_ANSWER_BYTES_MAX = 2**22


class Unanswered(Exception):
    """No answer came, for whatever reason; an audit does not judge that."""


class AuditClient:
    """Asks the buyer's application, by ASGI or over its unix socket, as the gateway does for its callers."""

    def __init__(self, transport: httpx.AsyncBaseTransport, timeout_s: float = 300.0) -> None:
        self._client = httpx.AsyncClient(transport=transport, base_url="http://buyer", timeout=timeout_s)

    async def close(self) -> None:
        await self._client.aclose()

    async def ask(self, listing: str, request: Mapping[str, Any], ceiling_nano: int) -> str:
        """Send an OpenAI chat request to a listing (by its digest), at most for `ceiling_nano` nano-USD. Return the
        answer's text. Raises Unanswered if no valid answer comes.
        """
        headers = {
            "x-request-id": f"{AUDIT_ID}{uuid4().hex}",
            "x-millrace-listing": listing,
            "x-millrace-ceiling-nano": str(ceiling_nano),
            # Another seller's answer would say nothing about this one.
            "x-millrace-alone": "1",
        }
        try:
            reply = await self._client.post("/v1/chat/completions", json=request, headers=headers)
            if reply.status_code != 200 or len(reply.content) > _ANSWER_BYTES_MAX:
                raise Unanswered(f"status {reply.status_code}")
            text = reply.json()["choices"][0]["message"]["content"]
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise Unanswered(type(error).__name__) from error
        return text if isinstance(text, str) else ""
