"""OpenAI's Responses API.

Modules:
    answer        The response object, and the items of its output
    conversation  Looks up the earlier responses that a question refers to
    items         Translates input items to the messages of a chat
    requests      Translates a Responses request to a chat request
    shapes        The shapes of a Responses request, checked as they are parsed
    tools         Translates a Responses request's tools to functions of a chat
    writer        Writes an answer as a response, whole or as events, and stores it if requested
"""
