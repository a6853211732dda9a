"""The APIs that clients speak. Each folder has one API's shapes, reader and writer.

Modules:
    anthropic         Anthropic's Messages API
    base              The interface of an API dialect: it translates the dialect's requests to OpenAI's API and
                      answers back
    chat_reader       Reads an upstream's answer to a chat or a completion, streamed or whole, from whatever bytes
                      it arrives in
    chat_writer       What every dialect's writer does alike: read pieces, remember them, and end once and for all
    model_loading     What Ollama's clients ask before the first word and after the last: a model in memory, or out
                      of it
    ollama            Ollama's own API
    openai            The OpenAI API's shapes: requests checked as they are parsed, and where they are answered
    pieces            What an answer to a chat says, piece by piece, whichever way the upstream wrote it
    refusals          An upstream's error, in OpenAI's shape or in none, as another API's
    responses         OpenAI's Responses API
    routes            Every hot route, as the edge mounts them
    stored_responses  Responses that their callers asked us to keep
"""
