"""HTTP/1.1 without a framework: client, upstream connections, bounded server connections.

Modules:
    api_error    Errors as HTTP, in OpenAI's shape: the one table from what happened to status, type and code
    client       A small HTTP/1.1 client for the traffic itself: kept-alive connections, one timer, no redirects,
                 no parsing
    connections  Limits on a connection before its client is known: header bytes, time and open connections
    hosts        Checks the `Host` header of requests to a gateway that listens on this machine alone
    origin       The address of a backend: a host and port, or a unix socket
    proxies      Finds the client of a request: if the peer is a trusted proxy, its headers name the client
    repeated     The head that a connection has seen before: who sends many messages begins each alike, but for its
                 length
    upstream     One connection to a backend: requests out, answers in, with a bound on everything that a backend
                 may send
"""
