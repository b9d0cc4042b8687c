"""A stand-in for a language model: a small HTTP server that speaks enough of the OpenAI chat protocol.

It answers `POST /v1/chat/completions` with `stream: true`, piece by piece, words and tool calls alike. What it says
depends on the conversation alone: it looks the order up, wants to refund it, and reports what came of that. Point
`OPENAI_BASE_URL` at a real server and the agent talks to that one instead.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

WORD_SECONDS = 0.02


def reply(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The next message of the assistant."""
    said = [message for message in messages if message["role"] != "system"]
    order = next(iter(re.findall(r"order (\w+)", str(said[0]["content"]))), "?")
    last = said[-1]
    if last["role"] == "user":
        return {"content": "Let me look at that order.", "tool": ("look_up", {"order": order})}
    found = str(last["content"])
    if found.startswith("{"):
        cents = json.loads(found)["cents"]
        return {"content": "It never arrived. I will refund it.", "tool": ("refund", {"order": order, "cents": cents})}
    if found.startswith("refunded"):
        return {"content": f"Done: order {order} is {found}. We are sorry for the trouble!"}
    return {"content": f"I could not refund order {order}: {found}. A colleague will call you."}


def chunks(answer: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """The message as the protocol streams it: words, then a tool call with its arguments in two halves."""
    yield {"role": "assistant", "content": ""}
    for word in re.findall(r"\S+\s*", answer["content"]):
        yield {"content": word}
    if "tool" in answer:
        name, arguments = answer["tool"]
        text = json.dumps(arguments)
        head = {"index": 0, "id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": ""}}
        yield {"tool_calls": [head]}
        for half in (text[: len(text) // 2], text[len(text) // 2 :]):
            yield {"tool_calls": [{"index": 0, "function": {"arguments": half}}]}


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request, one streamed answer."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = int(next(iter(re.findall(r"(?i)content-length: (\d+)", head)), "0"))
        messages = json.loads(await reader.readexactly(length))["messages"]
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for delta in chunks(reply(messages), len(messages)):
            writer.write(f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n".encode())
            await writer.drain()
            await asyncio.sleep(WORD_SECONDS)
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # the caller has gone; it will come again with the same question
    finally:
        writer.close()


@asynccontextmanager
async def running() -> AsyncIterator[str]:
    """The server's base URL, while it runs."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        await server.wait_closed()
