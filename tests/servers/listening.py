"""Ending a server of asyncio without losing a connection that is just being made."""

from __future__ import annotations

import asyncio

ACCEPT_TURNS = 3  # of the loop: the task that accepts, its connection, the task that serves it


async def end(server: asyncio.Server) -> None:
    """Accept no more, and let what is just being accepted become a connection that is served.

    A server that is closed in between forgets that socket without closing it, as of Python 3.11. The next test in which
    garbage is collected would fail for it.
    """
    for each in server.sockets:
        asyncio.get_running_loop().remove_reader(each.fileno())
    for _ in range(ACCEPT_TURNS):
        await asyncio.sleep(0)
    server.close()
