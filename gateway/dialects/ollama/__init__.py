"""Ollama's own API.

Modules:
    embeddings  Translates an embedding answer for either of Ollama's two routes
    errors      Errors in Ollama's format: the status, and one sentence
    requests    Translates Ollama's requests to chats, completions and embeddings
    shapes      The shapes of Ollama's requests, checked as they are parsed
    writer      Writes an answer in Ollama's format: one JSON object, or one on each line
"""
