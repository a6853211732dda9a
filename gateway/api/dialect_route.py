"""Further routes of other APIs than OpenAI's, with errors in that API's format."""

from collections.abc import Awaitable, Callable

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from gateway.errors import to_api_error
from runtime.errors import RequestInvalid, ServiceError
from runtime.http.api_error import ApiError

Handler = Callable[[Request], Awaitable[Response]]


def route_class(error_body: Callable[[ApiError], bytes]) -> type[APIRoute]:
    """For `APIRouter(route_class=...)`."""

    class DialectRoute(APIRoute):
        def get_route_handler(self) -> Handler:  # type: ignore[override]
            handler = super().get_route_handler()

            async def answer(request: Request) -> Response:
                try:
                    return await handler(request)
                except RequestValidationError as error:
                    problem = error.errors()[0]
                    place = ".".join(map(str, problem["loc"][1:]))
                    text = problem["msg"].removeprefix("Value error, ")
                    refused = to_api_error(RequestInvalid(f"{place}: {text}", param=place))
                except ServiceError as error:
                    refused = to_api_error(error)
                headers = {name.decode(): value.decode() for name, value in refused.headers}
                return Response(error_body(refused), refused.status, headers, "application/json")

            return answer

    return DialectRoute
