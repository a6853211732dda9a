"""The outermost layer: the routes that carry the traffic are reached at once, all others get an id here."""

from collections.abc import Mapping

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.request_ids import HEADER, new_request_id


class Edge:
    """`hot` are endpoints of POST by path, which name their requests themselves; `others` is everything else."""

    def __init__(self, hot: Mapping[str, ASGIApp], others: ASGIApp) -> None:
        self._hot = hot
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._hot.get(scope["path"]) if scope["method"] == "POST" else None
        if endpoint:
            await endpoint(scope, receive, send)
        else:
            await self._answer_with_id(scope, receive, send)

    async def _answer_with_id(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = new_request_id()
        structlog.contextvars.bind_contextvars(request_id=request_id)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (HEADER, request_id.encode())]
            await send(message)

        await self._others(scope, receive, send_with_id)
