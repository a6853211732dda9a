"""Ollama's own API.

Modules:
    embeddings  Translates an embedding answer for either of Ollama's two routes
    errors      Errors as Ollama's clients read them: the status, and one sentence
    requests    Ollama's requests become chats, completions and embeddings
    shapes      The shapes of Ollama's requests, checked as they are parsed
    writer      An answer becomes Ollama's: one JSON object, or one a line
"""
