"""Anthropic's Messages API.

Modules:
    blocks    The shapes of a Messages request, checked as they are parsed
    errors    Errors in Anthropic's format: the status, and one of a few types
    requests  Translates a Messages request to a chat request
    writer    Writes an answer as an Anthropic message, whole or as events
"""
