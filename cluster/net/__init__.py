"""Connections between machines: the data plane's blocking links, the control plane's channels."""
