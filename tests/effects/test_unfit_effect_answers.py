"""Answers that do not fit: of an effect that breaks its own declaration, and of one whose declaration was edited."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.features.proofs import calls as proof_calls
from worldline.inspect import why
from worldline.model import inbox
from worldline.model.journal import Kind


def program(kind: Any, answers: list[Any], gate: asyncio.Event | None = None) -> wl.Program:
    app = wl.Program("rating")

    async def rate(text: str) -> Any:
        del text
        if gate is not None:
            await gate.wait()
        return answers.pop(0)

    rate.__annotations__["return"] = kind
    effect = app.effect(rate)

    @app.workflow
    async def order() -> list[Any]:
        try:
            return [await effect("x")]
        except wl.EffectFailed as error:
            return [error.code, str(error)]

    @app.workflow
    async def beside() -> str:
        await wl.sleep(0.01)
        return "beside"

    return app


async def test_an_effect_that_breaks_its_own_declaration_has_failed(kit: Kit) -> None:
    """Before, its answer was journaled as one that is right, and the workflow got `DecodeError`, which no `except
    wl.EffectFailed` catches.
    """
    answers = [5, "never"]
    app = program(str, answers)
    process = await kit.process(app)
    world = await process.universe.ensure("w", app)
    code, said = await world.run(app.workflows["order"](), id="r", timeout=20)
    assert (code, answers) == ("decode_error", ["never"]), "what was done is not done again"
    assert "rate() was performed, and its answer is not what it declares: not a str" in said
    assert (await proof_calls.prove(world._handle)).holds
    await process.close()


@pytest.mark.parametrize("killed", [False, True])
async def test_an_answer_from_before_the_edit_is_kept_and_its_run_alone_blocked(kit: Kit, killed: bool) -> None:
    """Before, the run failed of the edit: its code got `DecodeError`."""
    gate = asyncio.Event()
    first, second = program(int, [5], gate), program(str, ["never"])
    old = await kit.process(first)
    world = await old.universe.ensure("w", first)
    await kits.begin(world, first.workflows["order"](), id="r")
    await world.pause()
    gate.set()
    at = await world._handle.address()

    async def answered() -> bool:
        return await kits.unread(old.engine, at) == 1

    await aio.until(answered)
    await old.close()

    new = await kit.process(second)
    world = new.universe.world("w")
    await world.resume()

    async def blocked() -> bool:
        return await (await world.attach("r")).status() is wl.RunStatus.BLOCKED

    await aio.until(blocked)
    [reason] = [each for each in (await why.why(world._handle)).reasons if each.stuck]
    assert "the recorded answer does not fit the type that is declared now" in reason.error
    ways = ("retry w r", "answer w r 1 VALUE", "reset w r --to 1", "terminate w r")
    assert reason.ways == [f"worldline runs {way}" for way in ways]
    assert await world.run(second.workflows["beside"](), id="b", timeout=20) == "beside"
    proof = await proof_calls.prove(world._handle, programs=[first])
    assert proof.holds, proof.difference
    assert proof.unverifiable == []

    if killed:
        await new.kill()
        await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.2)
        new = await kit.process(second)
        world = new.universe.world("w")
        assert await (await world.attach("r")).retry() is wl.RunStatus.BLOCKED
        await (await world.attach("r")).answer(1, "five")
        assert await (await world.attach("r")).result(20) == ["five"]
    else:
        await new.close()
        new = await kit.process(first)
        world = new.universe.world("w")
        assert await world.run(first.workflows["beside"](), id="c", timeout=20) == "beside"  # it is hosted again
        assert await (await world.attach("r")).result(20) == [5]
    receipts = [kits.item(each) for each in await kits.entries(world) if each.kind is Kind.EFFECT_RESULT]
    assert [each.status for each in receipts if isinstance(each, inbox.EffectReceipt)] == [inbox.ReceiptStatus.OK]
    proof = await proof_calls.prove(world._handle, programs=[first, second])
    assert proof.holds, proof.difference
    await new.close()
