"""The APIs that clients speak. Each folder has one API's shapes, reader and writer.

Modules:
    anthropic         Anthropic's Messages API
    base              The interface of an API dialect: it translates the dialect's requests to OpenAI's API and
                      answers back
    chat_reader       Reads an upstream's answer to a chat or a completion, streamed or whole, from bytes as they
                      arrive
    chat_writer       The base of every dialect's writer: it reads pieces, remembers them, and ends exactly once
    model_loading     Requests of Ollama's clients to load a model into memory or to unload it, without a question
    ollama            Ollama's own API
    openai            The OpenAI API's shapes: requests checked as they are parsed, and their paths
    pieces            The content of a chat's answer, piece by piece, independent of the upstream's format
    refusals          Translates an upstream's error, in OpenAI's shape or in none, to another API's
    responses         OpenAI's Responses API
    routes            The table of hot routes
    stored_responses  Stored responses of the Responses API
"""
