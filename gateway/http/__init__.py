"""The socket side of the hot path: requests that never enter the framework.

Modules:
    desk       Who answers the hot routes, as their connections see it
    exchange   One request on a hot route and its answer, as they stand on a connection
    hot        Hot routes: they carry the traffic and bypass ASGI; uvicorn serves all other routes
    on_demand  An ASGI application that is imported and made on its first request
"""
