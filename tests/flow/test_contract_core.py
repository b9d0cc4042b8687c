"""The Host contract: what Core alone decides, what Core is given, and which head a host dispatches from."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from tests.flow.conftest import Desks
from tests.flow.contract_kit import FETCH, INCREMENT, gives, idle_data, made, pending
from tests.flow.hosts import said, types
from tests.flow_core.documents import HALT, effect, get, lit, loaded, once, op, put, seq
from worldline import flow
from worldline.flow_core import core, flow_records, patches

CONTEXT = flow_records.JobContext(now=7, random_seed="i")


# --- Core ------------------------------------------------------------------------------------------------


def test_core_changes_nothing_that_it_is_given() -> None:
    """And gives the same for the same: it has no memory of the first time."""
    flow_ = seq(put("count", op("add", get("count"), lit(1))), put("list", lit([1])), effect("io", n=get("count")))
    domain = loaded({"go": flow_}, {"list": {"type": "array", "required": False, "default": []}})
    whole = core.Core()
    first = core.created(domain, {"list": [0], "$host": {"kept": [0]}}, CONTEXT)
    intent = flow_records.Intent("go", "i", {"given": [0]})
    asked = whole.compute(domain, first, intent, CONTEXT).snapshot
    given = [patches.set_("list.0", 5), patches.merge("$host", {"more": 1}), patches.set_(patches.CLEAR, [])]
    before = [flow_records.encoded(each) for each in (first, asked)]
    found = [
        (
            flow_records.encoded(whole.compute(domain, first, intent, CONTEXT).snapshot),
            flow_records.encoded(whole.apply(domain, asked, given, CONTEXT)),
            flow_records.encoded(whole.abandon(asked, intent, CONTEXT, code="NO", message="no")),
        )
        for _ in range(2)
    ]
    assert found[0] == found[1]
    assert [flow_records.encoded(each) for each in (first, asked)] == before
    assert (intent.input, given[0].value) == ({"given": [0]}, 5)


class OfItsOwn(core.Core):
    """A Core that runs another action than the intent names, and has computed values of its own."""

    def compute(
        self, schema: Any, snapshot: Any, intent: flow_records.Intent, context: Any, **options: Any
    ) -> core.Computed:
        found = super().compute(schema, snapshot, msgspec.structs.replace(intent, type="other"), context, **options)
        own = msgspec.structs.replace(found.snapshot, computed={"computed.doubled": "Core's own"})
        return msgspec.structs.replace(found, snapshot=own)


async def test_core_alone_decides_and_derives(open_alone: Desks) -> None:
    """The host does what Core says, whatever the document's flow says, and takes computed values as they are."""
    desk = open_alone(made(go=HALT, other=FETCH), {"http": gives("response", {})}, core=OfItsOwn())
    assert (await desk.act("go")).status == "complete"
    assert (await idle_data(desk))["done"] is True
    assert said(desk, "effect:dispatch", "effectType") == ["http"]
    assert (await desk.snapshot()).computed == {"computed.doubled": "Core's own"}


class Forgetful(core.Core):
    """A Core whose list of requirements is not what its snapshot says is pending."""

    def compute(self, *given: Any, **options: Any) -> core.Computed:
        found = super().compute(*given, **options)
        wrong = [msgspec.structs.replace(each, type="wrong") for each in found.requirements]
        return msgspec.structs.replace(found, requirements=tuple(wrong))


async def test_what_is_dispatched_is_read_from_the_snapshot(open_alone: Desks) -> None:
    desk = open_alone(made(go=FETCH), {"http": gives("response", {})}, core=Forgetful())
    assert (await desk.act("go")).status == "complete"
    assert said(desk, "effect:dispatch", "effectType") == ["http"]


# --- Heads, effects and the mailbox ----------------------------------------------------------------------


async def test_a_handler_sees_the_head_of_its_own_key(open_desk: Desks) -> None:
    seen: list[Any] = []

    async def look(call: flow.EffectCall) -> list[flow.Patch]:
        seen.append(call.snapshot["data"]["count"])
        return [flow.set("saw", 1)]

    desk = open_desk(made(go=seq(put("count", get("input.n")), once("saw", "look"))), {"look": look})
    for number, key in enumerate(("x", "y")):
        await desk.act("go", {"n": number}, key=key)
    assert seen == [0, 1]


async def test_effects_are_performed_outside_the_mailbox(open_alone: Desks) -> None:
    """Jobs of the same key are run while an effect is performed."""
    gate = asyncio.Event()

    async def waits(call: flow.EffectCall) -> list[flow.Patch]:
        await gate.wait()
        return [flow.set("response", {})]

    desk = open_alone(made(go=FETCH), {"http": waits})
    await desk.submit("go")
    await desk.idle()
    await desk.patch([flow.set("note", "meanwhile")])
    await desk.idle()
    assert ((await desk.snapshot()).data["note"], len(await pending(desk))) == ("meanwhile", 1)
    gate.set()
    await desk.idle()
    assert (await idle_data(desk))["done"] is True


async def test_patches_wait_for_their_turn(open_desk: Desks) -> None:
    """MAIL-4: what comes from outside goes through the mailbox, behind what is in it."""
    desk = open_desk(made(go=INCREMENT))
    await desk.submit("go")
    await desk.patch([flow.set("count", 10)])
    await desk.idle()
    assert (await idle_data(desk))["count"] == 10
    assert said(desk, "job:start", "jobType") == ["StartIntent", "ApplyPatches"]
    assert types(desk).count("job:start") == types(desk).count("job:end")
