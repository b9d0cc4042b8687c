"""Watch the support agent at work: words as they are streamed, a refund that is approved, and one that times out.

    python -m examples.agent [FOLDER]

The model is the fake one beside this file, unless OPENAI_BASE_URL names another.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile

import worldline as wl
from examples.agent import fake_model, support


async def show_words(world: wl.World) -> None:
    """Print what the model streams, while it does."""
    speaking = b""
    async for each in world.follow():
        if isinstance(each, wl.Chunk):
            print("" if each.intent == speaking else "\n  agent: ", each.value, sep="", end="", flush=True)
            speaking = each.intent


async def decide(world: wl.World, *, yes: bool) -> None:
    """Be the person at the desk: wait for a question and answer it."""
    while not (waiting := (await world.state(support.Desk)).open):
        await asyncio.sleep(0.02)
    for call, what in waiting.items():
        print(f"\n  (may I {what}? {'yes' if yes else 'no'}, says Ada)", end="")
        await world.send(support.Decided(call, yes=yes, by="Ada"))


async def answer(universe: wl.Universe, customer: str, question: str, *, somebody_there: bool) -> str:
    """One customer, one world: the question, and what the agent makes of it."""
    world = await universe.ensure(customer, support.app)
    print(f"\n{customer}: {question}", end="")
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(show_words(world))
        desk = tasks.create_task(decide(world, yes=True)) if somebody_there else None
        result = await world.run(support.agent(question), id="question")
        watching.cancel()
        if desk is not None:
            desk.cancel()
    print()
    return result


async def main(folder: str) -> None:
    async with fake_model.running() as url, wl.open(folder, host=support.app) as universe:
        os.environ.setdefault("OPENAI_BASE_URL", url)
        first = await answer(universe, "carol", "Where is my order A7?", somebody_there=True)
        second = await answer(universe, "dave", "And my order B2?", somebody_there=False)
        print(f"\njournaled for carol: {first}\njournaled for dave:  {second}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="agent-")))
