"""Personal values are erased everywhere, and everything else stays as it was: journals, digests, proofs, forks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests.features.proofs.test_inclusion import SCRIPT as CHECK_ENTRY
from tests.features.proofs.test_inclusion import spoken
from tests.features.proofs.test_state_proof import SCRIPT as CHECK_ROW
from tests.kits import kit as kits
from tests.kits import people, secrets
from tests.kits.kit import Kit
from tests.kits.people import LOUD, SECRET, Joined, MailOf, Renamed, Shouted
from worldline.base import errors, limits
from worldline.codec import sealed_token
from worldline.features.proofs import calls as proof_calls
from worldline.features.proofs import entry_proof, row_proof
from worldline.inspect import verify
from worldline.keys import personal_records as sealed_keys
from worldline.model.journal import Kind
from worldline.model.personal_records import PersonalRecord
from worldline.store import kv

SECRETS = (SECRET, LOUD)


async def applied(world: wl.World, event: object) -> int:
    return await (await world.send(event)).applied(30)


async def told(world: wl.World) -> list[bytes]:
    """What its journal says of erasures, once it has said something."""
    async with asyncio.timeout(30):
        async for each in world.follow(above=0):
            if isinstance(each, wl.Entry) and each.kind is Kind.ERASED:
                break
    return [each.payload for each in await kits.entries(world) if each.kind is Kind.ERASED]


async def verified(world: wl.World) -> verify.Verified:
    return await verify.verify(world._universe, await world._handle.address())


async def test_nothing_of_a_secret_is_left(kit: Kit, tmp_path: Path) -> None:
    """On every engine: no key, no value, no object, compressed or not; while chain, old proofs and replay hold."""
    app, names = people.program()
    world = await (await kit.process(app)).universe.ensure("w", app)
    await people.live(world, names)
    assert len(await secrets.places(kit, *SECRETS)) >= 6, "each value is kept once, and found by the search"
    witnessed = await row_proof.witness_now(world._handle)
    row = await row_proof.prove_state(world._handle, "Person['ada']", witnessed)
    await world.snapshot()
    before = await kits.entries(world)
    entries = [await entry_proof.prove_entry(world._handle, each.height) for each in before]
    assert (await proof_calls.prove(world._handle)).erased == []

    found = await world.erase(key="ada")

    assert (found.values, found.subjects, found.worlds, found.untold) == (9, 1, ["w"], [])
    assert await secrets.places(kit, *SECRETS) == []
    assert (await kits.entries(world))[: len(before)] == before
    await told(world)
    await verified(world)
    for proof in entries[::3]:
        (tmp_path / "entry").write_text(proof.text())
        assert spoken(CHECK_ENTRY, tmp_path / "entry", proof.chain.hex())[0] == 0
    (tmp_path / "row").write_text(row.text())
    assert spoken(CHECK_ROW, tmp_path / "row", row.entry.chain.hex())[0] == 0
    plain = (await world.state())["Person"]
    assert plain["ada"] == {"name": "Ada", "mail": "erased", "loud": ["erased"], "erased": 0}
    assert plain["ada"]["mail"] is wl.errors.Erased.TEXT
    assert plain["bob"]["mail"] == "bob@example.org"
    assert await secrets.places(kit, *SECRETS) == []


async def test_readers_say_erased(memory_kit: Kit) -> None:
    app, names = people.program()
    world = await (await memory_kit.process(app)).universe.ensure("w", app)
    await people.live(world, names)
    height = (await world.head()).height
    await world.erase(key="ada")
    await told(world)
    for at in (None, height):
        person: Any = await world.state(names["Person"], "ada", at=at)
        assert person.mail.erased
        assert repr(person.mail) == "Personal(erased)"
        with pytest.raises(wl.errors.Erased):
            _ = person.mail.value
    answer = await world.ask(MailOf("ada"), timeout=30)
    assert answer is not None
    assert answer.erased
    result = await (await world.attach("greeting")).result(30)
    assert result == wl.errors.Erased.TEXT


@pytest.mark.probe("personal.erased-read", "proof.erased-step")
async def test_code_that_reads_what_was_erased(memory_kit: Kit) -> None:
    """It gets `wl.errors.Erased`; its step says so, and is proved. Steps that had the value are named, and not run
    again.
    """
    app, names = people.program()
    world = await (await memory_kit.process(app)).universe.ensure("w", app)
    joined = await applied(world, people.ada())
    shouted = await applied(world, Shouted("ada"))
    renamed = await applied(world, Renamed("ada", "Ada"))
    await world.erase(key="ada")
    after = await applied(world, Shouted("ada"))
    person: Any = await world.state(names["Person"], "ada")
    assert (person.erased, len(person.loud), person.name) == (1, 1, "Ada")
    read = [each for each in await kits.entries(world) if each.kind is Kind.ERASED_READ]
    assert [each.height for each in read] == [after + 1]
    proof = await proof_calls.prove(world._handle)
    assert proof.holds
    assert [(each.first, each.last) for each in proof.erased] == [(shouted, shouted)]
    assert proof.proved == proof.steps - 1
    assert (joined, renamed) == (1, 3), "they passed the value on, or did not touch it: they are proved"
    assert proof.unverifiable == []


async def test_what_comes_later_starts_anew(memory_kit: Kit) -> None:
    app, names = people.program()
    world = await (await memory_kit.process(app)).universe.ensure("w", app)
    await applied(world, people.ada())
    assert (await world.erase(key="ada")).values == 2
    assert (await world.erase(key="ada")).values == 0
    await applied(world, Joined("ada", wl.Personal("new@example.org", of="ada")))
    person: Any = await world.state(names["Person"], "ada")
    assert person.mail.value == "new@example.org"
    assert (await world.erase(key="ada")).values == 1
    assert len([each for each in await kits.kinds(world) if each is Kind.ERASED]) <= 2
    assert await secrets.places(memory_kit, SECRET, "new@example.org") == []


async def test_one_payload(memory_kit: Kit) -> None:
    """What stands in other payloads of the same person stays."""
    app, names = people.program()
    world = await (await memory_kit.process(app)).universe.ensure("w", app)
    first = await applied(world, people.ada("old@example.org"))
    await applied(world, people.ada(SECRET))
    plan = await world.erase(height=first, dry_run=True)
    assert (plan.values, len(await secrets.places(memory_kit, "old@example.org"))) == (2, 2)
    assert (await world.erase(height=first)).values == 2
    assert await secrets.places(memory_kit, "old@example.org") == []
    person: Any = await world.state(names["Person"], "ada")
    assert person.mail.value == SECRET
    past: Any = await world.state(names["Person"], "ada", at=first)
    assert past.mail.erased
    assert (await world.erase(height=first)).values == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"key": "eve"}, "has no personal value of 'eve'"),
        ({"height": 99}, "has no entry at height 99"),
        ({"height": 2}, "has no personal value in it"),
    ],
)
async def test_nothing_to_erase_changes_nothing(memory_kit: Kit, given: dict[str, Any], said: str) -> None:
    app, _ = people.program()
    world = await (await memory_kit.process(app)).universe.ensure("w", app)
    await applied(world, people.ada())
    await applied(world, Renamed("ada", "Ada"))
    before = await secrets.everything(memory_kit)
    with pytest.raises(errors.NotFound, match=said):
        await world.erase(**given)
    assert await secrets.everything(memory_kit) == before


@pytest.mark.parametrize("given", [{}, {"key": "ada", "height": 1}, {"key": ""}, {"height": 0}, {"height": True}])
async def test_bad_input(memory_kit: Kit, given: dict[str, Any]) -> None:
    app, _ = people.program()
    world = await (await memory_kit.process(app)).universe.ensure("w", app)
    await applied(world, people.ada())
    with pytest.raises(errors.BadInput):
        await world.erase(**given)


async def test_forks_are_erased_with_their_parent(kit: Kit) -> None:
    """Forks made before and after, and a fork of a fork; also if a fork is what was named."""
    app, names = people.program()
    process = await kit.process(app)
    world = await process.universe.ensure("w", app)
    height = await applied(world, people.ada())
    child = await world.fork("child")
    await applied(child, Joined("ada", wl.Personal(LOUD, of="ada")))
    grandchild = await child.fork("grandchild")
    found = await grandchild.erase(key="ada")
    assert (found.values, found.worlds) == (3, ["w", "child", "grandchild"])
    assert await secrets.places(kit, *SECRETS) == []
    for each in (world, child, grandchild):
        assert len(await told(each)) == 1
        await verified(each)
        assert (await proof_calls.prove(each._handle)).holds
    late = await world.fork("late", at=height)
    person: Any = await late.state(names["Person"], "ada")
    assert person.mail.erased


async def test_a_world_that_no_process_runs(kit: Kit) -> None:
    """Values go at once; the journal says so when the world runs again."""
    app, _ = people.program()
    hosting = await kit.process(app)
    world = await hosting.universe.ensure("w", app)
    await applied(world, people.ada())
    await hosting.close()
    client = (await kit.process()).universe.world("w")
    await client.send(people.ada(LOUD))
    assert (await client.erase(key="ada")).values == 4
    assert await secrets.places(kit, *SECRETS) == []
    again = (await kit.process(app)).universe.world("w")
    assert len(await told(again)) == 1
    assert (await again.state())["Person"]["ada"]["mail"] == "erased"


async def test_a_world_that_is_taken_back_to_before_it(memory_kit: Kit) -> None:
    """The state is that of then, and the value is not."""
    app, names = people.program()
    world = await (await memory_kit.process(app)).universe.ensure("w", app)
    height = await applied(world, people.ada())
    await applied(world, Renamed("ada", "Ada"))
    await world.erase(key="ada")
    await told(world)
    await world.revert(height)
    person: Any = await world.state(names["Person"], "ada")
    assert (person.name, person.mail.erased) == ("", True)
    await verified(world)
    assert (await proof_calls.prove(world._handle)).holds
    found = await world.diff(at=height)
    assert SECRET not in str(found)


async def test_very_many_values(memory_kit: Kit) -> None:
    """More than are read together; more than can be written at once are refused, and nothing is kept."""
    app, names = people.program()
    world = await (await memory_kit.process(app)).universe.ensure("w", app)
    many = tuple(wl.Personal({"n": str(n)}, of="ada") for n in range(limits.PERSONAL_STEP_MAX - 1))
    height = await applied(world, Joined("ada", wl.Personal(SECRET, of="ada"), many))
    found = await world.erase(height=height, dry_run=True)
    assert found.values == limits.PERSONAL_STEP_MAX
    with pytest.raises(errors.EncodeError, match="can be written at once"):
        await world.send(Joined("ada", wl.Personal(LOUD, of="ada"), (*many, *many)))
    assert await secrets.places(memory_kit, LOUD) == []
    call = names["hoard"]("ada", 2 * limits.PERSONAL_PAGE)
    assert len(await world.run(call, timeout=30)) == 2 * limits.PERSONAL_PAGE
    assert (await verified(world)).personal == 3 * limits.PERSONAL_PAGE
    assert (await world.erase(height=(await world.head()).height)).values == 2 * limits.PERSONAL_PAGE
    assert (await verified(world)).erased == 2 * limits.PERSONAL_PAGE


async def test_a_guess_cannot_be_confirmed(memory_kit: Kit) -> None:
    """Of a short value: while its salt is there, the token is that of the value; without it, no hash of it is left."""
    app, _ = people.program()
    universe = (await memory_kit.process(app)).universe
    world = await universe.ensure("w", app)
    await applied(world, Joined("ada", wl.Personal("no", of="ada")))
    [token] = sealed_token.find(b"".join(each.payload for each in await kits.entries(world)))
    root = await world._handle.address()
    engine = await memory_kit.engine()
    raw = (await engine.read(kv.Get(sealed_keys.value_key(root, token.subject, token.value)))).value(0)
    assert raw is not None
    kept = sealed_keys.KEPT.unpack(raw)
    assert sealed_token.seal(token.subject, token.value, salt=kept.salt, data=kept.data) == token
    await world.erase(key="ada")
    left = b"".join(data for _, data in await secrets.everything(memory_kit))
    assert kept.salt not in left
    assert token.commitment in left


async def test_an_input_sent_again_is_the_same(memory_kit: Kit) -> None:
    """Under its id: though every value has a salt of its own. What is refused leaves nothing."""
    app, names = people.program()
    world = await (await memory_kit.process(app)).universe.ensure("w", app)
    await world.send(people.ada(), id="x")
    before = await secrets.places(memory_kit, SECRET)
    assert (await world.send(people.ada(), id="x")).already_enqueued
    with pytest.raises(wl.errors.IdReused):
        await world.send(people.ada("other@example.org"), id="x")
    assert await world.ask(MailOf("ada"), id="ask", timeout=30) == await world.ask(MailOf("ada"), id="ask", timeout=30)
    assert await secrets.places(memory_kit, SECRET) == before
    greet = names["greet"]
    first = await world.start(greet("ada", wl.Personal(SECRET, of="ada")), id="r")
    again = await world.start(greet("ada", wl.Personal(SECRET, of="ada")), id="r")
    assert first.id == again.id
    await world.archive()
    with pytest.raises(errors.Closed):
        await world.send(people.ada("late@example.org"))
    assert await secrets.places(memory_kit, "other@example.org", "late@example.org") == []


async def test_a_value_that_is_damaged_or_missing_is_named(memory_kit: Kit) -> None:
    """By `verify`: a missing value that was not erased is damage."""
    app, _ = people.program()
    world = await (await memory_kit.process(app)).universe.ensure("w", app)
    await applied(world, people.ada())
    found = await verified(world)
    assert (found.personal, found.erased) == (2, 0)
    [token, _] = sealed_token.find(b"".join(each.payload for each in await kits.entries(world)))
    key = sealed_keys.value_key(await world._handle.address(), token.subject, token.value)
    engine = await memory_kit.engine()
    raw = (await engine.read(kv.Get(key))).value(0)
    assert raw is not None
    other = sealed_keys.KEPT.pack(PersonalRecord(sealed_keys.KEPT.unpack(raw).salt, b"\x63eve"))
    await change(engine, key, raw, other)
    with pytest.raises(verify.Damaged, match="damaged at height 1: a personal value"):
        await verified(world)
    await change(engine, key, other, None)
    with pytest.raises(verify.Damaged, match="is missing, and was not erased"):
        await verified(world)
    await world.erase(key="ada")
    assert (await verified(world)).erased == 2


async def test_a_damaged_value_stops_its_world(memory_kit: Kit) -> None:
    """It is no failure of the code: nothing is journaled, and the world is left alone."""
    app, _ = people.program()
    world = await (await memory_kit.process(app)).universe.ensure("w", app)
    await applied(world, people.ada())
    [token, _] = sealed_token.find(b"".join(each.payload for each in await kits.entries(world)))
    key = sealed_keys.value_key(await world._handle.address(), token.subject, token.value)
    engine = await memory_kit.engine()
    raw = (await engine.read(kv.Get(key))).value(0)
    assert raw is not None
    await change(engine, key, raw, sealed_keys.KEPT.pack(PersonalRecord(bytes(sealed_token.SALT_BYTES), b"\x63eve")))
    await world.send(Shouted("ada"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await world.ask(MailOf("ada"))
    assert Kind.HANDLER_FAILED not in await kits.kinds(world)


async def test_other_code_is_tried_on_what_is_left(memory_kit: Kit) -> None:
    """The same code does the same, what it seals included; of a value that was erased, nothing can be said."""
    app, _ = people.program()
    world = await (await memory_kit.process(app)).universe.ensure("w", app)
    await applied(world, people.ada())
    await applied(world, Shouted("ada"))
    same = await world.shadow(people.program()[0])
    assert (same.stopped, same.cells, same.inputs) == ("", [], [])
    await world.erase(key="ada")
    await applied(world, Shouted("ada"))
    again = await world.shadow(people.program()[0], last=1)
    assert (again.stopped, again.cells, again.inputs) == ("", [], [])
    assert "was erased since" in (await world.shadow(people.program()[0])).stopped


async def test_a_change_of_code_finds_the_values(memory_kit: Kit) -> None:
    """Runs are tried under the new code before it is taken, and go on under it."""
    app, names = people.program()
    process = await memory_kit.process(app)
    world = await process.universe.ensure("w", app)
    _ = await world.start(names["greet"]("ada", wl.Personal(SECRET, of="ada")), id="greeting")
    await process.close()
    edited, _ = people.program()

    @edited.effect
    async def another() -> None:
        pass

    world = (await memory_kit.process(edited)).universe.world("w")
    await world.send(people.Go(), to="greeting")
    assert await (await world.attach("greeting")).result(30) == f"hello ada to {SECRET}!"


async def change(engine: kv.Engine, key: bytes, before: bytes, after: bytes | None) -> None:
    batch = kv.Batch()
    batch.expect(key, before)
    if after is None:
        batch.delete(key)
    else:
        batch.put(key, after)
    [outcome] = await engine.commit(batch)
    assert isinstance(outcome, kv.Ok)
