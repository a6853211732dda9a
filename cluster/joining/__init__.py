"""How a machine finds its cluster and joins it: discovery, enrolment, and the handshake of every connection.

Modules:
    discovery    Discovery by multicast DNS in one network
    enrolment    Joining a cluster: a machine checks the token's fingerprint and exchanges the token for a
                 certificate
    handshake    The facts on which two programs of a cluster must agree
    whereabouts  A node's search for its controller: the configured address, the last known one, and the network
"""
