"""OpenAI's Responses API.

Modules:
    answer        The response object, and the items of its output
    conversation  What a question points at in earlier responses, looked up before it is asked
    items         Input items become the messages of a chat
    requests      A Responses request becomes a chat request
    shapes        The shapes of a Responses request, checked as they are parsed
    tools         A Responses request's tools as the functions that a chat has
    writer        An answer becomes a response, whole or as its events, and is stored where that was asked for
"""
