"""Proofs and arguments: a run that was under way where a proof begins is rebuilt, and must ask for the same again, with
the same arguments, as far as the same code had asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.features.proofs import calls as proof_calls
from worldline.features.proofs import job as proof_job
from worldline.model.journal import Kind


@dataclass(frozen=True)
class Go:
    by: str


def paying(cents: Callable[[], int], *, more: int = 0, forgets: bool = False) -> wl.Program:
    """Pays what `cents` says, and `more`; waits, and ends."""
    app = wl.Program("paying")

    @app.effect
    async def pay(cents: int) -> int:
        return cents

    @app.workflow
    async def order() -> str:
        paid = await pay(cents() + more)
        if forgets:
            _ = pay(0)  # made and never awaited: a proof does not mind
        await wl.wait(Go)
        return f"paid {paid}"

    return app


async def under_way(kit: Kit, app: wl.Program) -> tuple[kits.Process, wl.World]:
    """A run that has asked for its effect, and a snapshot behind that."""
    process = await kit.process(app)
    world = await process.universe.ensure("w", app)
    await kits.begin(world, app.workflows["order"](), id="o")

    async def waits() -> bool:
        return len((await world._handle.machine()).runs["o"].record.log) == 1

    await aio.until(waits)
    await world.snapshot()
    return process, world


async def test_other_arguments_below_the_baseline_are_a_divergence(kit: Kit) -> None:
    """Before, arguments were compared in proved steps alone, and this proof held."""
    drawn = iter(range(500, 1_000))
    app = paying(lambda: next(drawn))
    process, world = await under_way(kit, app)
    await world.send(Go("ann"))
    assert await (await world.attach("o")).result(20) == "paid 500"
    proof = await proof_calls.prove(world._handle, whole=False)
    assert proof.difference is not None
    assert "run_finished" in proof.difference.journal
    said = proof.difference.code
    assert "run 'o' (order), operation 1: the code passes other arguments than the journal has" in said
    assert "journal: effect 'pay' (cents=500) (step 1)" in said
    assert "code:    effect 'pay' (cents=501)" in said
    assert "test_proof_arguments.py" in said
    assert "runs retry" not in said, "the run is not blocked, and needs no way out"
    assert await (await world.attach("o")).status() is wl.RunStatus.FINISHED
    await process.close()


async def test_the_background_finds_it_too(kit: Kit) -> None:
    drawn = iter(range(500, 1_000))
    app = paying(lambda: next(drawn))
    process, world = await under_way(kit, app)
    await process.close()
    process = await kit.process(app, settings=kits.settings(janitor={"prove_ms": 60_000}))
    world = process.universe.world("w")
    [background] = [job for job in process.host.jobs if isinstance(job, proof_job.Proofs)]
    with mock.patch.object(background, "_worlds", list):  # begun before the event, a proof would begin at the start
        await (await world.send(Go("ann"))).applied(20)
        at = await world._handle.address()

    async def diverged() -> bool:
        return at in background.diverged

    await aio.until(diverged)
    assert "run 'o' (order), operation 1" in background.diverged[at].message
    await process.close()


async def test_the_same_arguments_and_a_forgotten_call_are_none(kit: Kit) -> None:
    """A machine that refuses other arguments does not refuse calls that are never awaited."""
    app = paying(lambda: 500, forgets=True)
    process, world = await under_way(kit, app)
    await world.send(Go("ann"))
    assert await (await world.attach("o")).result(20) == "paid 500"
    proof = await proof_calls.prove(world._handle, whole=False)
    assert proof.holds, proof.difference
    await process.close()


async def test_what_earlier_code_has_asked_for_may_be_asked_for_differently_now(kit: Kit) -> None:
    """An edit of arguments is no divergence: neither where the change is proved, nor behind a snapshot above it."""
    first, second = paying(lambda: 500), paying(lambda: 500, more=100)
    assert first.hash != second.hash
    process, world = await under_way(kit, first)
    await process.close()
    process = await kit.process(second)
    world = process.universe.world("w")
    await world.snapshot()
    await world.send(Go("ann"))
    assert await (await world.attach("o")).result(20) == "paid 500"
    assert Kind.PROGRAM_CHANGED in await kits.kinds(world)
    for whole in (True, False):
        proof = await proof_calls.prove(world._handle, programs=[first], whole=whole)
        assert proof.holds, proof.difference
        assert proof.unverifiable == []
    await process.close()
