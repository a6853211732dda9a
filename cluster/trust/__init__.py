"""Membership in a cluster: certificates, tokens, handshakes and discovery."""
