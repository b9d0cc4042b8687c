"""Names that are the runtime's own are refused at every door, and who sent an input is what its door says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

import worldline as wl
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline import flow, testing
from worldline.base import errors
from worldline.client import dead_letters
from worldline.codec import structs
from worldline.features.copies import pack_file
from worldline.features.copies import records as copy_records
from worldline.features.copies.world_file import Tag
from worldline.features.relay.inlet import Inlet
from worldline.kernel import user_values
from worldline.keys import inbox as inbox_keys
from worldline.layers import inbox as inboxes
from worldline.model import ids, inbox, payload
from worldline.model.inbox import MessageMode
from worldline.model.journal import Kind
from worldline.store import kv


def named(schema: str, base: type = object) -> type:
    """An event type that calls itself so."""

    @dataclass(frozen=True)
    class Forged(base):  # type: ignore[misc]
        ok: bool = True
        data: bytes = b""

    Forged.__schema__ = schema
    return Forged


@dataclass(frozen=True)
class Note:
    text: str


SYSTEM = ["worldline/reply", "worldline/anything", "worldline.send", "message:1", "inbox:orders", "Envelope"]
attacker = wl.Program("attacker")
victim = wl.Program("victim")


@attacker.workflow
async def attack(to: str, schema: str, ask: bool) -> str:
    try:
        if ask:
            await wl.ask(to, named(schema, wl.Request[int])())
        else:
            await wl.send(to, named(schema)(), correlation="ab" * 16)
    except wl.Undeliverable as error:
        return error.code
    return "taken"


@victim.reducer
@dataclass
class Seen:
    said: list[str] = field(default_factory=list)

    @wl.on
    def note(self, event: Note) -> None:
        who = wl.sender()
        self.said.append("nobody" if who is None else f"{who.universe}/{who.world}")

    @wl.on
    def any(self, event: wl.Envelope) -> None:
        who = wl.sender()
        sender = "nobody" if who is None else who.world
        self.said.append(f"{event.inbox} of {event.from_world or 'nobody'}, {sender}")


# --- Doors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", SYSTEM)
async def test_clients_cannot_use_them(schema: str, memory_kit: Kit) -> None:
    async with memory_kit.hosting(victim) as universe:
        world = await universe.create("v", victim)
        before = await world.head()
        doors: dict[str, Callable[[], Any]] = {
            "send": lambda: world.send(named(schema)()),
            "ask": lambda: world.ask(named(schema, wl.Request[int])()),
            "schedule": lambda: world.schedule("s", named(schema)(), every=60),
            "relay": lambda: Inlet(world._handle, None, schema, None).put({"ok": True}, id=None),
        }
        for door, forge in doors.items():
            with pytest.raises(errors.ReservedName, match="are names of the runtime's own"):
                await forge()
            assert await world.head() == before, door


async def test_an_envelope_from_outside_names_no_sender(memory_kit: Kit) -> None:
    async with memory_kit.hosting(victim) as universe:
        world = await universe.create("v", victim)
        forged = wl.Envelope("orders", b"", {}, "ab" * 16, 7)
        with pytest.raises(errors.ReservedName):
            await world.send(forged)
        with pytest.raises(errors.ReservedName):
            await world.schedule("s", forged, every=60)
        await (await world.send("x", inbox="orders")).applied()
        assert (await world.state(Seen)).said == ["orders of nobody, nobody"]


@pytest.mark.parametrize("schema", SYSTEM)
@pytest.mark.parametrize("to", ["v", "shop/v"], ids=["near", "away"])
async def test_worlds_cannot_use_them(to: str, schema: str, memory_kit: Kit) -> None:
    """A grant of one inbox, or of everything, makes no difference."""
    async with memory_kit.hosting(attacker, victim) as here, memory_kit.hosting(victim, universe="shop") as there:
        world = await here.create("a", attacker)
        targets = [await here.create("v", victim), await there.create("v", victim)]
        await there.allow("default", events="inbox:orders")
        await there.allow("default")
        for ask in (False, True):
            said = await kits.run(world, attack(to, schema, ask), id=f"r{ask}")
            assert said == errors.ReservedName.code
        assert [await kits.kinds(each) for each in targets] == [[], []]
        await kits.prove(world, attacker)


@pytest.mark.parametrize("schema", SYSTEM)
def test_the_testing_kit_refuses_them_too(schema: str) -> None:
    with testing.world(attacker) as world:
        world.also("v", victim)
        world.also("shop/v", victim)
        for to in ("v", "shop/v"):
            assert world.run(attack(to, schema, False)) == errors.ReservedName.code
            assert world.run(attack(to, schema, True)) == errors.ReservedName.code
        with pytest.raises(errors.ReservedName):
            world.send(named(schema)())
        with pytest.raises(errors.ReservedName):
            world.ask(named(schema, wl.Request[int])())
        with pytest.raises(errors.ReservedName):
            world.schedule("s", named(schema)(), every=60)


def test_a_flow_domain_cannot_ask_for_what_hosts_do_by_themselves() -> None:
    class Peeping(flow.Domain):
        found: str | None = None

        @flow.action
        def peep(self) -> None:
            flow.perform(flow.ask("worldline.share", world="w", intent="i"), into=self.found)

    with pytest.raises(errors.ReservedName, match=r"worldline\.share"):
        wl.Program("p").domain(Peeping)


async def test_a_dead_letter_of_before_cannot_be_retried(memory_kit: Kit) -> None:
    """An event of such a name may have been set aside before names were reserved."""
    async with memory_kit.hosting(victim) as universe:
        world = await universe.create("v", victim)
        at, connection = await world._handle.address(), world._handle.connection
        items: list[inbox.Item] = [
            inbox.InboxEvent("worldline/reply", payload.EMPTY),
            inbox.InboxEvent("Envelope", payload.inline(user_values.dump(wl.Envelope("i", b"", {}, "ab" * 16, 7)))),
            message("worldline/reply"),
        ]
        for number, item in enumerate(items):
            raw = inbox_keys.ITEM.pack(item)
            letter = inboxes.DeadLetterRecord(
                kv.Stamp(number.to_bytes(12, "big")), raw, inbox.DeadItem(raw, "why", 1, 1)
            )
            with pytest.raises(errors.ReservedName):
                await dead_letters.retry(connection, at, letter)


# --- World files ---------------------------------------------------------------------------------------------------


def message(name: str, mode: MessageMode = MessageMode.TYPED, data: Any = None) -> inbox.Message:
    """One that the treasury would have sent."""
    return inbox.Message(
        b"m" * 16,
        b"T" * 16,
        b"W" * 16,
        7,
        mode,
        name,
        payload.inline(user_values.dump(data)),
        reply=inbox.Reply.MESSAGE,
        universe="treasury",
        world="mint",
    )


async def forged_file(kit: Kit, file: Path, *, unread: inbox.Item, dead: inbox.Item | None = None) -> None:
    """An export, with one more input in it that was never sent."""
    async with kit.hosting(victim) as universe:
        world = await universe.create("v", victim)
        await (await world.send(Note("x"))).applied()
        await world.export(file)
    _add(file, unread, dead)


def _add(file: Path, unread: inbox.Item, dead: inbox.Item | None) -> None:
    records = list(pack_file.of_bytes(pack_file.PackKind.WORLD, file.read_bytes()))
    added = [(int(Tag.UNREAD), structs.encode(copy_records.CopiedInput(inbox_keys.ITEM.pack(unread))))]
    if dead is not None:
        letter = inbox.DeadItem(inbox_keys.ITEM.pack(dead), "why", 1, 1)
        added.insert(0, (int(Tag.DEAD), inbox_keys.DEAD.pack(letter)))
    packer = pack_file.Packer(pack_file.PackKind.WORLD)
    last = max(index for index, (tag, _) in enumerate(records) if tag not in (Tag.SEALED, Tag.SUBJECT))
    whole = [*records[: last + 1], *added, *records[last + 1 :]]
    file.write_bytes(b"".join(packer.add(tag, data) for tag, data in whole) + packer.finish())


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (message("Note", data={"text": "pay"}), "nobody"),
        (message("orders", MessageMode.INBOX, "pay"), "orders of nobody, nobody"),
    ],
    ids=["typed", "inbox"],
)
async def test_who_sent_what_a_file_says_is_not_believed(
    item: inbox.Message, said: str, memory_kit: Kit, tmp_path: Path
) -> None:
    file = tmp_path / "v.world"
    await forged_file(memory_kit, file, unread=item, dead=message("Note", data={"text": "later"}))
    async with memory_kit.hosting(victim) as universe:
        world = await universe.import_world(file, name="copy")
        await world.resume()
        await (await world.send(Note("behind"))).applied()
        assert (await world.state(Seen)).said == ["nobody", said, "nobody"]
        assert Kind.MESSAGE_SENT not in await kits.kinds(world), "nothing is answered that was asked of another world"
        at, connection = await world._handle.address(), world._handle.connection
        [letter] = await kits.dead(connection.store.engine, at)
        await dead_letters.retry(connection, at, letter)
        await (await world.send(Note("behind"))).applied()
        assert (await world.state(Seen)).said[3:] == ["nobody", "nobody"]
        await kits.prove(world, victim)


@pytest.mark.parametrize(
    "item",
    [
        inbox.InboxEvent("worldline/reply", payload.EMPTY),
        inbox.InboxEvent("Envelope", payload.inline(user_values.dump(wl.Envelope("i", b"", {}, "ab" * 16, 7)))),
        message("Envelope", data=wl.Envelope("i", b"", {}, "ab" * 16, 7)),
    ],
    ids=["event", "envelope", "message"],
)
async def test_a_file_with_what_no_door_takes_is_refused(item: inbox.Item, memory_kit: Kit, tmp_path: Path) -> None:
    file = tmp_path / "v.world"
    await forged_file(memory_kit, file, unread=item)
    async with memory_kit.hosting(victim) as universe:
        with pytest.raises(errors.Error, match="runtime's own"):
            await universe.import_world(file, name="copy")


async def test_an_answer_in_a_file_is_left_out(memory_kit: Kit, tmp_path: Path) -> None:
    file = tmp_path / "v.world"
    reply = msgspec.structs.replace(message("worldline/reply"), correlation="ab" * 16)
    await forged_file(memory_kit, file, unread=reply)
    async with memory_kit.hosting(victim) as universe:
        world = await universe.import_world(file, name="copy")
        assert await kits.unread(world._handle.connection.store.engine, await world._handle.address()) == 0


def test_ids_of_messages_are_no_clients() -> None:
    with pytest.raises(errors.BadInput, match="message:"):
        ids.check_client_id("message:1")
