"""Who hangs up behind the last word of a paid answer and before its count is still charged what that says.

Providers count what nobody sees, as what a model thought, and say so behind the end of every choice. For so long
the answer goes on without its caller; in all other cases it is stopped at once.
"""

import asyncio

from gateway.journey.heard import Followed
from gateway.lanes.body import Body

LINGER_S = 2.0
_STOP_S = 5.0


async def send_out(body: Body, hearing: Followed, choices: int) -> None:
    """Send the body, as it does itself. Returns, too, where its caller had left and it came to its end."""
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
