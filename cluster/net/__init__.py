"""Connections between machines: the data plane's blocking links, the control plane's channels.

Modules:
    channel    Control-plane connections: frames both ways over mutual TLS on the event loop
    sockets    The TCP options of every connection of a cluster: no waiting for full packets, dead peers found in
               seconds
    transport  Data-plane links: one direction each, blocking sockets under mutual TLS, a thread at either end
"""
