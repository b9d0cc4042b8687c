"""An agent that answers customers: it thinks, uses tools, and asks a person before it gives money away.

The loop is an ordinary workflow. Every thought and every use of a tool is an effect whose answer is journaled, so an
agent that is killed resumes in the middle of its conversation and never pays twice for the same thought. The words of
an answer are streamed to every subscriber while it is being made.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

import worldline as wl

app = wl.Program("support")

TURNS_MAX = 8
APPROVAL_SECONDS = 1.0
ORDERS = {
    "A7": {"what": "a teapot", "cents": 4200, "status": "lost"},
    "B2": {"what": "a lamp", "cents": 9900, "status": "lost"},
}
DESCRIBED = [
    {
        "type": "function",
        "function": {"name": name, "description": what, "parameters": {"type": "object", "properties": takes}},
    }
    for name, what, takes in (
        ("look_up", "Look at an order", {"order": {"type": "string"}}),
        ("refund", "Pay an order back", {"order": {"type": "string"}, "cents": {"type": "integer"}}),
    )
]
SYSTEM = "You help the customers of a small shop. Look at an order before you promise anything."


@dataclass(frozen=True)
class ToolCall:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    role: str
    content: str
    calls: list[ToolCall] = field(default_factory=list)
    answers: str = ""  # the id of the tool call that this is the answer to


@dataclass(frozen=True)
class ApprovalWanted:
    call: str
    what: str


@dataclass(frozen=True)
class Decided:
    """By a person, about one use of a tool."""

    call: str
    yes: bool
    by: str = ""


@app.reducer()
@dataclass
class Desk:
    """What waits for a person."""

    open: dict[str, str] = field(default_factory=dict)

    @wl.on
    def wanted(self, event: ApprovalWanted) -> None:
        self.open[event.call] = event.what

    @wl.on
    def decided(self, event: Decided) -> None:
        self.open.pop(event.call, None)


# --- Outside: the model and the tools --------------------------------------------------------------------------------


@app.effect(timeout=60, retry=wl.Retry(attempts=5, initial_delay=0.2))
async def think(messages: list[Message]) -> Message:
    """Ask the model for the next message, passing its words on as they come."""
    words: list[str] = []
    calls: dict[int, dict[str, str]] = {}
    async for delta in _streamed(messages):
        if delta.get("content"):
            words.append(delta["content"])
            wl.attempt().emit(delta["content"])
        for part in delta.get("tool_calls") or ():
            call = calls.setdefault(part["index"], {"id": "", "name": "", "arguments": ""})
            call["id"] += part.get("id") or ""
            call["name"] += part["function"].get("name") or ""
            call["arguments"] += part["function"].get("arguments") or ""
    return Message("assistant", "".join(words), [ToolCall(**calls[index]) for index in sorted(calls)])


async def _streamed(messages: list[Message]) -> AsyncIterator[dict[str, Any]]:
    """The model's answer, piece by piece. One that breaks off is no answer: it raises, and is asked for again."""
    body = {
        "model": os.environ.get("OPENAI_MODEL", "fake"),
        "stream": True,
        "tools": DESCRIBED,
        "messages": [_spoken(message) for message in messages],
    }
    headers = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'none')}"}
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    asked: dict[str, Any] = {"json": body, "headers": headers, "timeout": 60}
    async with httpx.AsyncClient() as client, client.stream("POST", url, **asked) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                return
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
    raise ConnectionError("the model stopped in the middle of its answer")


def _spoken(message: Message) -> dict[str, Any]:
    """A message as the protocol has it."""
    spoken: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        spoken["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    if message.answers:
        spoken["tool_call_id"] = message.answers
    return spoken


@app.effect
async def look_up(order: str) -> str:
    return json.dumps(ORDERS[order]) if order in ORDERS else f"there is no order {order}"


@app.effect
async def refund(order: str, cents: int) -> str:
    """A real one would send `wl.attempt().key` along, so that trying twice pays once."""
    return f"refunded with {cents / 100:.2f}, key {wl.attempt().key[:8]}, order {order}"


TOOLS: dict[str, wl.Effect[..., str]] = {"look_up": look_up, "refund": refund}
NEED_APPROVAL = ("refund",)


# --- Inside: the loop ------------------------------------------------------------------------------------------------


@app.workflow
async def agent(question: str) -> str:
    messages = [Message("system", SYSTEM), Message("user", question)]
    for _ in range(TURNS_MAX):
        thought = await think(messages)
        messages.append(thought)
        if not thought.calls:
            return thought.content
        for call in thought.calls:
            messages.append(Message("tool", await use(call), answers=call.id))
    return "I do not get any further with this. A colleague will call you."


async def use(call: ToolCall) -> str:
    """What a tool answers, or why it was not used."""
    if call.name not in TOOLS:
        return f"there is no tool {call.name}"
    given: dict[str, Any] = json.loads(call.arguments)
    if call.name in NEED_APPROVAL and not await approved(call):
        return "it was not approved"
    try:
        return await TOOLS[call.name](**given)
    except wl.EffectFailed as failed:
        return f"it failed: {failed}"


async def approved(call: ToolCall) -> bool:
    """Ask a person, and take silence for a no."""
    wl.emit(ApprovalWanted(call.id, f"{call.name} {call.arguments}"))
    try:
        decided = await wl.wait(Decided, where=lambda event: event.call == call.id, timeout=APPROVAL_SECONDS)
    except TimeoutError:
        wl.emit(Decided(call.id, yes=False, by="the clock"))
        return False
    return decided.yes
