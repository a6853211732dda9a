"""Identify who trades: identities that outlive their keys, and what other gateways can check about them."""
