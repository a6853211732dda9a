"""Any error as an answer in OpenAI's shape."""

import structlog
from starlette.responses import Response

from accounting.errors import LedgerError
from gateway.errors import to_api_error
from runtime.errors import ServiceError

log = structlog.get_logger(__name__)


def error_response(error: Exception, path: str) -> Response:
    """Return any error in OpenAI's shape; the text of an internal error goes only to the log."""
    if not isinstance(error, ServiceError | LedgerError):
        log.error("request failed", path=path, exc_info=error)
    answer = to_api_error(error)
    headers = {name.decode(): value.decode() for name, value in answer.headers}
    return Response(answer.body(), answer.status, headers, "application/json")
