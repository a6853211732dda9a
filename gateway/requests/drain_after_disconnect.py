"""Charge the reported token count of a paid answer if the caller disconnects after its text and before its count.

Providers count hidden tokens, such as reasoning, and report the count after the end of every choice. The answer
continues without its caller for at most LINGER_S. In all other cases it is stopped immediately.
"""

import asyncio

from gateway.lanes.body import Body
from gateway.requests.delivery import AcknowledgedSink

LINGER_S = 2.0
_STOP_S = 5.0


async def send_out(body: Body, hearing: AcknowledgedSink, choices: int) -> None:
    """Send the body. Also returns normally if the caller disconnected and the body reached its end."""
    sending = asyncio.create_task(body.send(hearing), name="paid answer")
    try:
        await asyncio.wait((sending,))
    except asyncio.CancelledError:
        if hearing.has_all(choices):
            await asyncio.wait((sending,), timeout=LINGER_S)
        sending.cancel()
        await asyncio.wait((sending,))
        if sending.cancelled():
            raise
        if task := asyncio.current_task():
            task.uncancel()
    finally:
        if not sending.done():
            sending.cancel()
            await asyncio.wait((sending,), timeout=_STOP_S)
    sending.result()
