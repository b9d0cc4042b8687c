"""Rules of a universe: what a world may not send or use is refused where it asks for it, from the acknowledgement of a
change on, and a replay asks no rule.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.base import errors
from worldline.client import world_changes
from worldline.layers import work as works
from worldline.model.journal import Kind
from worldline.runtime import operator_calls


@dataclass(frozen=True)
class Note:
    text: str


@dataclass(frozen=True)
class Count(wl.Request[int]):
    pass


guest = wl.Program("guest")
keeper = wl.Program("keeper")
performed: list[str] = []


@keeper.reducer()
@dataclass
class Notes:
    texts: list[str] = field(default_factory=list)

    @wl.on
    def note(self, event: Note) -> None:
        self.texts.append(event.text)

    @wl.on
    def count(self, event: Count) -> int:
        return len(self.texts)


@guest.effect
async def charge(amount: int) -> int:
    performed.append(f"charge {amount}")
    return amount


@guest.effect
async def look(at: str) -> str:
    performed.append(f"look {at}")
    return at


@guest.workflow
async def use() -> list[str]:
    told = []
    for call in (charge(5), look("x")):
        try:
            told.append(str(await call))
        except wl.errors.PolicyDenied as error:
            told.append(f"{error.code} {error.attempts}: {error}")
    return told


@guest.workflow
async def tell(to: str) -> list[str]:
    told = []
    for what in ("note", "count"):
        try:
            await (wl.send(to, Note("n")) if what == "note" else wl.ask(to, Count()))
            told.append(what)
        except wl.Undeliverable as error:
            told.append(f"{error.code}: {error}")
    return told


@guest.workflow
async def charge_when_told() -> list[str]:
    told = []
    for _ in range(50):
        await wl.wait(Note)
        try:
            told.append(str(await charge(1)))
        except wl.errors.PolicyDenied as error:
            return [*told, error.code]
    return told


async def _performed_three() -> bool:
    return len(performed) == 3


@pytest.fixture(autouse=True)
def _fresh() -> None:
    performed.clear()


async def test_an_effect_that_a_rule_denies_is_never_tried(kit: Kit) -> None:
    async with kit.hosting(guest) as universe:
        world = await universe.ensure("guest-1", guest)
        other = await universe.ensure("staff", guest)
        assert await world.run(use(), timeout=20) == ["5", "x"]
        performed.clear()
        rule = await universe.add_rule("deny", "effect", worlds="guest-*", names="charge")
        why = f"charge: world 'guest-1' may not use charge: rule {rule.number} of its universe denies it"
        assert await world.run(use(), timeout=20) == [
            f"policy_denied 0: {why}; `worldline policy list` shows the rules",
            "x",
        ]
        assert await other.run(use(), timeout=20) == ["5", "x"]
        assert performed == ["look x", "charge 5", "look x"]
        assert await universe.why_not("guest-1", effect="charge") == why.removeprefix("charge: ")
        assert await universe.why_not("staff", effect="charge") is None
        at = await world._handle.address()
        read = await universe._connection.store.engine.read(works.open_range(at, count_max=9))
        assert not read.page(0).items  # nothing of it is left open
        await universe.drop_rule(rule.number)
        assert await world.run(use(), timeout=20) == ["5", "x"]
        await universe.add_rule("deny", "effect")
        await kits.prove(world, guest)  # under rules that would refuse all of it
        assert Kind.LATE_ANSWER not in await kits.kinds(world)


async def test_an_only_rule_names_all_that_a_program_may_use(memory_kit: Kit) -> None:
    async with memory_kit.hosting(guest, keeper) as universe:
        world = await universe.ensure("a", guest)
        await universe.add_rule("only", "effect", program="keeper", names="nothing")
        assert await world.run(use(), timeout=20) == ["5", "x"]
        first = await universe.add_rule("only", "effect", program="guest", names="look")
        [told, x] = await world.run(use(), timeout=20)
        assert (told.split(":")[0], x) == ("policy_denied 0", "x")
        second = await universe.add_rule("only", "effect", program="gue*", names="char*")
        assert await world.run(use(), timeout=20) == ["5", "x"]
        assert [each.number for each in await universe.rules()] == [1, first.number, second.number]
        await kits.prove(world, guest)


async def test_messages_that_rules_are_against_are_refused_by_either_end(kit: Kit) -> None:
    async with kit.hosting(guest, keeper) as universe:
        here = await universe.ensure("guest-1", guest)
        there = await universe.ensure("keeper", keeper)
        rule = await universe.add_rule("deny", "send", worlds="guest-*", peers="keeper", names="Note")
        why = f"world 'guest-1' may not send Note to 'keeper': rule {rule.number} of its universe denies it"
        refused = [f"not_allowed: keeper: message to 'keeper': {why}", "count"]
        assert await here.run(tell("keeper"), timeout=20) == refused
        assert await universe.why_not("guest-1", to="keeper", event="Note") == why
        await universe.drop_rule(rule.number)
        rule = await universe.add_rule("only", "receive", worlds="keeper", peers="till-*")
        told = await here.run(tell("keeper"), timeout=20)
        assert [each.split(":")[0] for each in told] == ["not_allowed", "not_allowed"]
        assert (await there.state(Notes)).texts == []
        told = await here.run(tell("nowhere"), timeout=20)
        assert [each.split(":")[0] for each in told] == ["undeliverable", "undeliverable"]
        await universe.add_rule("only", "receive", worlds="keeper", peers="guest-1", names="Note")
        [note, count] = await here.run(tell("keeper"), timeout=20)
        assert (note, count.split(":")[0]) == ("note", "not_allowed")

        async def is_taken() -> bool:
            return (await there.state(Notes)).texts == ["n"]

        await aio.until(is_taken, seconds=20)
        await kits.prove(here, guest)
        await kits.prove(there, keeper)


async def test_a_message_to_another_universe_has_the_rules_of_messages(memory_kit: Kit) -> None:
    process = await memory_kit.process(guest)
    universe = process.universe
    world = await universe.ensure("guest-1", guest)
    await universe.add_rule("only", "effect", names="look")  # sending is no effect that a program has
    await universe.add_rule("deny", "send", peers="else/*", names="Note")
    told = await world.run(tell("else/where"), timeout=20)
    assert [each.split(":")[0] for each in told] == ["not_allowed", "undeliverable"]
    assert "rule 2" in told[0]
    await process.close()


async def test_a_change_holds_for_every_step_after_its_acknowledgement(kit: Kit) -> None:
    """Two processes host the same worlds' program; the one that changes the rules holds nothing."""
    one = await kit.process(guest)
    two = await kit.process()
    world = await one.universe.ensure("guest-1", guest)
    run = await world.start(charge_when_told())
    for _ in range(3):
        await world.send(Note("go"))
    await aio.until(_performed_three, seconds=20)
    await two.universe.add_rule("deny", "effect", worlds="guest-*")
    performed.clear()
    await world.send(Note("go"))
    assert await run.result(timeout=20) == ["1", "1", "1", "policy_denied"]
    assert performed == []
    await kits.prove(world, guest)
    await one.close()
    await two.close()


async def test_an_interrupted_change_holds_once_it_is_made_again(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut_off(*_: object, **__: object) -> int:
        raise errors.StoreUnavailable("cut off")

    async with memory_kit.hosting(guest) as universe:
        world = await universe.ensure("guest-1", guest)
        assert await world.run(use(), timeout=20) == ["5", "x"]
        with monkeypatch.context() as patched:
            patched.setattr(operator_calls, "fence_holders", cut_off)
            with pytest.raises(errors.StoreUnavailable):
                await universe.add_rule("deny", "effect", names="charge")
        await universe.add_rule("deny", "effect", names="charge")
        assert len(await universe.rules()) == len(await universe.policy_changes()) == 1
        assert (await world.run(use(), timeout=20))[0].startswith("policy_denied")


async def test_another_name_has_the_rules_of_that_name(memory_kit: Kit) -> None:
    async with memory_kit.hosting(guest) as universe:
        world = await universe.ensure("staff", guest)
        await universe.add_rule("deny", "effect", worlds="guest-*", names="charge")
        assert await world.run(use(), timeout=20) == ["5", "x"]
        at = await world._handle.address()
        await world_changes.rename(universe._connection, at, "guest-7")
        assert (await universe.world("guest-7").run(use(), timeout=20))[0].startswith("policy_denied")


async def test_changes_under_load_refuse_all_after_and_lose_nothing(kit: Kit) -> None:
    """Rules come and go while runs ask for effects: each run ends, with an answer or with a refusal."""
    async with kit.hosting(guest) as universe:
        worlds = [await universe.ensure(f"guest-{number}", guest) for number in range(4)]
        asking = [asyncio.ensure_future(each.run(use(), timeout=60)) for each in worlds for _ in range(5)]
        for _ in range(3):
            rule = await universe.add_rule("deny", "effect", names="charge")
            await universe.drop_rule(rule.number)
        told = await asyncio.gather(*asking)
        assert len(told) == 20
        assert {each[0].split()[0] for each in told} <= {"5", "policy_denied"}
        assert performed.count("charge 5") >= sum(each[0] == "5" for each in told)
        await universe.add_rule("deny", "effect", names="charge")
        performed.clear()
        told = await asyncio.gather(*(each.run(use(), timeout=60) for each in worlds))
        assert performed.count("charge 5") == 0
        assert all(each[0].startswith("policy_denied") for each in told)
        for each in worlds:
            await kits.prove(each, guest)


@pytest.mark.parametrize(
    ("verb", "scope", "given", "why"),
    [
        ("allow", "effect", {}, "'deny' or 'only'"),
        ("deny", "timer", {}, "'send', 'receive' or 'effect'"),
        ("deny", "effect", {"peers": "a"}, "leave out peers="),
        ("deny", "receive", {"program": "a"}, "leave out program="),
        ("deny", "send", {"names": "a*b"}, "names= takes a name"),
        ("deny", "send", {"worlds": 5}, "worlds= takes a name"),
    ],
)
async def test_rules_that_mean_nothing_are_refused(
    memory_kit: Kit, verb: str, scope: str, given: dict[str, str], why: str
) -> None:
    async with memory_kit.hosting(guest) as universe:
        with pytest.raises(wl.BadInput, match=why):
            await universe.add_rule(verb, scope, **given)  # type: ignore[arg-type]
        with pytest.raises(wl.NotFound, match="no rule 7"):
            await universe.drop_rule(7)
        assert await universe.rules() == []
        assert await universe.policy_changes() == []


async def test_what_was_changed_is_kept_beside_the_grants(memory_kit: Kit) -> None:
    async with memory_kit.hosting(guest) as universe:
        await universe.allow("00" * 16)
        rule = await universe.add_rule("deny", "send", names="inbox:*")
        await universe.drop_rule(rule.number)
        shown = [(each.change, each.added, each.rule) for each in await universe.policy_changes()]
        assert shown == [(3, False, rule), (2, True, rule)]
        assert [each.change for each in await universe.allowed_changes()] == [1]
        assert len(await universe.allowed()) == 1
