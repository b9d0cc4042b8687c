from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from examples.agent import fake_model, support
from tests import aio
from worldline import testing


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long the conversation was at each question to the model, which answers without dawdling."""
    found: list[int] = []
    reply = fake_model.reply

    def counting(messages: list[dict[str, Any]]) -> dict[str, Any]:
        found.append(len(messages))
        return reply(messages)

    monkeypatch.setattr(fake_model, "reply", counting)
    monkeypatch.setattr(fake_model, "WORD_SECONDS", 0)
    return found


@asynccontextmanager
async def hosted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[wl.World]:
    async with fake_model.running() as url, wl.open(str(folder), host=support.app) as universe:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        yield await universe.ensure("carol", support.app)


async def waiting(world: wl.World) -> dict[str, str]:
    """What waits for a person, once something does."""

    async def something() -> bool:
        return bool((await world.state(support.Desk)).open)

    await aio.until(something)
    return (await world.state(support.Desk)).open


async def test_a_refund_is_approved_after_the_host_was_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[int]
) -> None:
    monkeypatch.setattr(support, "APPROVAL_SECONDS", 60)
    async with hosted(tmp_path, monkeypatch) as world:
        _ = await world.start(support.agent("Where is order A7?"), id="q")
        [(call, what)] = (await waiting(world)).items()
        assert what == 'refund {"order": "A7", "cents": 4200}'
    async with hosted(tmp_path, monkeypatch) as world:
        assert list(await waiting(world)) == [call]
        await world.send(support.Decided(call, yes=True))
        answer = await world.run(support.agent("Where is order A7?"), id="q", timeout=20)
        assert answer.startswith("Done: order A7 is refunded with 42.00")
        assert (await world.state(support.Desk)).open == {}
    assert asked == [2, 4, 6], "no thought was asked for twice"


@pytest.mark.parametrize("said", ["no", "nothing"])
async def test_without_approval_nothing_is_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[int], said: str
) -> None:
    monkeypatch.setattr(support, "APPROVAL_SECONDS", 60 if said == "no" else 0.2)
    async with hosted(tmp_path, monkeypatch) as world:
        run = await world.start(support.agent("Where is order B2?"), id="q")
        if said == "no":
            for call in await waiting(world):
                await world.send(support.Decided(call, yes=False))
        assert "could not refund order B2: nobody approved it" in await run.result(timeout=20)
        performed = [entry for entry in await world.journal() if entry.kind.name == "EFFECT_REQUESTED"]
        assert not any(b"refund" in entry.payload[:20] for entry in performed)
        assert (await world.state(support.Desk)).open == {}


async def test_words_are_streamed_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[int]
) -> None:
    async with hosted(tmp_path, monkeypatch) as world:
        _ = await world.start(support.agent("Where is order X9?"), id="q")  # there is none: two thoughts, no refund
        words = []
        async for each in world.follow():
            if isinstance(each, wl.Chunk):
                words.append(each.value)
                assert (each.name, each.run, each.attempt) == ("think", "q", 1)
            elif each.kind.name == "RUN_FINISHED":
                break
        assert "".join(words).startswith("Let me look at that order.")
        assert len(words) > 5
    assert asked == [2, 4]


async def test_a_model_that_fails_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[int]
) -> None:
    reply, broken = fake_model.reply, [True]

    def failing_once(messages: list[dict[str, Any]]) -> dict[str, Any]:
        if broken:
            broken.clear()
            raise ConnectionResetError("the model has hiccups")
        return reply(messages)

    monkeypatch.setattr(fake_model, "reply", failing_once)
    async with hosted(tmp_path, monkeypatch) as world:
        answer = await world.run(support.agent("Where is order X9?"), timeout=20)
    assert "there is no order X9" in answer


def scripted(messages: list[support.Message]) -> support.Message:
    """The fake model's mind without its server."""
    said = fake_model.reply([{"role": each.role, "content": each.content} for each in messages])
    calls = []
    if "tool" in said:
        name, arguments = said["tool"]
        calls = [support.ToolCall(f"call_{len(messages)}", name, json.dumps(arguments))]
    return support.Message("assistant", said["content"], calls)


@pytest.mark.parametrize(
    ("decision", "ends"),
    [
        (True, "Done: order A7 is refunded twice over. We are sorry for the trouble!"),
        (False, "nobody"),
        (None, "nobody"),
    ],
)
def test_in_virtual_time(decision: bool | None, ends: str) -> None:
    script = wl.Script().on(support.think, scripted).on(support.look_up, '{"cents": 5}')
    script.on(support.refund, "refunded twice over")
    with testing.world(support.app, script) as world:
        run = world.start(support.agent("Where is order A7?"))
        [call] = world.state(support.Desk).open
        world.crash()
        if decision is not None:
            world.send(support.Decided(call, yes=decision))
        assert ends in run.result()
        assert world.state(support.Desk).open == {}
        world.prove()
