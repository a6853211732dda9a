"""Playground: talk to a model as any client does, and see where each answer came from and what it cost.

Modules:
    code          The same request as code: for curl, and for OpenAI's clients in Python and JavaScript
    listener      A request's client for an answer sent over ASGI: it buffers the written bytes for the response
    page          The playground page, with fields filled in from the query string; and the figures of an answer
    problems      Errors as the page's script shows them: a sentence, a remedy, and the field to correct
    question      The message to send: the fields of the page's form, and the chat completion that they become
    send_message  Sends a message through the normal request path as the visitor; the answer streams to the page
"""

from fastapi import APIRouter

from gateway.console.pages.playground import code, page, send_message

router = APIRouter()
for _part in (page, send_message, code):
    router.include_router(_part.router)
