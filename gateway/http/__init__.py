"""The socket side of the hot path: requests that bypass the framework.

Modules:
    desk       The interface of the hot routes' handler, for their connections
    error_response  Any error as an answer in OpenAI's shape
    exchange   One request on a hot route and its answer, on a connection
    hot        Hot routes: they carry the traffic and bypass ASGI; uvicorn serves all other routes
    on_demand  An ASGI application that is imported and created on its first request
"""
