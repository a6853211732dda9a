"""Anthropic's Messages API.

Modules:
    blocks    The shapes of a Messages request, checked as they are parsed
    errors    Errors as Anthropic's clients read them: by status, and by a type of few
    requests  A Messages request becomes a chat request
    writer    An answer becomes an Anthropic message, whole or as its events
"""
