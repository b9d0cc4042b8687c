"""A store that is made of an old backup has nothing that was erased since, if a ledger says what that was."""

from __future__ import annotations

import asyncio
import re
import stat
from pathlib import Path

import pytest

import worldline as wl
from tests import aio
from tests.cli.cli_kit import Said, run
from tests.kits import people
from tests.kits.people import SECRET
from worldline.base import errors
from worldline.codec import sealed_token as tokens
from worldline.features.copies import backup_calls
from worldline.features.encryption.master_keys import AesGcm
from worldline.features.erasure import key_destruction, ledger_entries
from worldline.features.erasure import ledger_file as ledgers
from worldline.features.erasure.records import ErasedKind, LedgerEntry
from worldline.host.feature_list import FEATURES
from worldline.keys import space
from worldline.runtime import environment, store_opening

APP, _ = people.program()
DELETED = "plain text of a deleted world"
HEAD = '{"format":"worldline-ledger-1"}\n'
LINE = f'{{"erased":"world","universe":"{"00" * 16}","world":"{"00" * 16}","subject":"","values":[],"time_us":1}}\n'
CODEC = AesGcm(keys={"k": bytes(range(32))}, current="k")


async def cli(*words: object) -> Said:
    """A command, which has an event loop of its own."""
    return await asyncio.to_thread(run, *words)


async def stock(store: Path, folder: Path) -> None:
    """A store, and a backup of it as it was before some of it was erased."""
    async with wl.open(str(store), host=APP) as universe:
        world = await universe.create("w", APP)
        await (await world.send(people.ada())).applied()
        await (await world.send(people.Joined("bob", wl.Personal("bob's mail", of="bob"), ()))).applied()
        other = await universe.create("other", APP)
        await aio.journaled(await other.send(people.Shouted(DELETED)))
        async with wl.open(str(store), universe="town", create=True, host=APP) as town:
            await aio.journaled(await (await town.create("t", APP)).send(people.Shouted("of a deleted universe")))
        await backup_calls.backup(universe._connection.store, str(folder))
        await world.erase(key="ada")
        await other.delete()
    await wl.ops.delete_universe(str(store), "town", with_worlds=True)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ledger that erasures are written to."""
    monkeypatch.setenv(environment.LEDGER, str(tmp_path / "ledger"))
    return tmp_path / "ledger"


def shown(path: Path) -> tuple[int, str]:
    return stat.S_IMODE(path.stat().st_mode), path.read_text()


async def mails(store: Path) -> dict[str, str]:
    async with wl.open(str(store), programs=APP) as universe:
        return {key: str(cell["mail"]) for key, cell in (await universe.world("w").state())["Person"].items()}


async def names(store: Path) -> list[str]:
    async with wl.open(str(store)) as universe:
        return sorted([each.name async for each in universe.worlds(status=wl.Status.ARCHIVED)])


async def test_what_was_erased_since_the_backup_is_erased_again(tmp_path: Path, kept: Path) -> None:
    store, folder, target = tmp_path / "store", tmp_path / "backups", tmp_path / "target"
    await stock(store, folder)
    mode, text = shown(kept)
    assert mode == 0o600
    assert SECRET not in text
    assert "ada" not in re.findall(r"\w+", text), "a word of its own: ids in hexadecimal may hold these letters"
    said = await cli("restore", folder, target, "--ledger", kept)
    assert said.code == 0, said.err
    assert "3 later erasures: applied again" in said.out or "4 later erasures: applied again" in said.out
    assert "NO LEDGER" not in said.out
    raw = (target / "data.mdb").read_bytes()
    for gone in (SECRET, DELETED, "of a deleted universe"):
        assert gone.encode() not in raw
    assert b"bob's mail" in raw
    assert await names(target) == ["w"]
    found = await mails(target)
    assert (SECRET in found["ada"], found["bob"]) == (False, "bob's mail")
    async with store_opening.store(str(target), create=False, features=FEATURES) as opened:
        kinds = [each.kind for each in await ledger_entries.read_all(opened.engine)]
    assert {ErasedKind.SUBJECT, ErasedKind.WORLD, ErasedKind.UNIVERSE} == set(kinds), "later backups of it know it, too"


async def test_without_a_ledger_it_is_said_loudly_and_a_ledger_that_is_found_later_helps(
    tmp_path: Path, kept: Path
) -> None:
    store, folder, target = tmp_path / "store", tmp_path / "backups", tmp_path / "target"
    await stock(store, folder)
    said = await cli("restore", folder, target)
    assert "NO LEDGER: what was erased after" in said.out
    assert f"worldline ledger apply FILE --store {target}" in said.out
    assert await names(target) == ["other", "w"]
    assert (await mails(target))["ada"] == SECRET
    said = await cli("ledger", "apply", kept, "--yes", "--store", target)
    assert said.code == 1, "the universe is for a person to delete"
    assert "not done: universe" in said.out
    assert (await cli("universe", "delete", "town", "--with-worlds", "--yes", "--store", target)).code == 0
    assert (await cli("ledger", "apply", kept, "--yes", "--store", target)).code == 0
    assert await names(target) == ["w"]
    raw = (target / "data.mdb").read_bytes()
    assert SECRET.encode() not in raw
    assert DELETED.encode() not in raw


async def test_what_was_erased_before_the_backup_takes_nothing_that_came_later(tmp_path: Path, kept: Path) -> None:
    store, folder, target = tmp_path / "store", tmp_path / "backups", tmp_path / "target"
    async with wl.open(str(store), host=APP) as universe:
        world = await universe.create("w", APP)
        await (await world.send(people.ada())).applied()
        await world.erase(key="ada")
        await (await world.send(people.ada("a new mail"))).applied()
        await backup_calls.backup(universe._connection.store, str(folder))
    said = await cli("restore", folder, target, "--ledger", kept)
    assert said.code == 0, said.err
    assert "NO LEDGER" not in said.out
    assert (await mails(target))["ada"] == "a new mail"


async def test_a_backup_of_an_older_release_has_no_ledger_and_times_decide(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, folder, target = tmp_path / "store", tmp_path / "backups", tmp_path / "target"
    with monkeypatch.context() as patched:
        patched.setattr(space, "FORMAT_MINOR", 1)
        await stock(store, folder)
    earlier = LedgerEntry(ErasedKind.SUBJECT, *await place_of(store), tokens.subject_of("bob"), [], 5)
    ledgers.write(kept, [earlier, *ledgers.read(kept)])
    said = await cli("restore", folder, target, "--ledger", kept)
    assert said.code == 0, said.err
    found = await mails(target)
    assert (SECRET in found["ada"], found["bob"]) == (False, "bob's mail")
    assert await names(target) == ["w"]


async def place_of(store: Path) -> tuple[bytes, bytes]:
    async with wl.open(str(store)) as universe:
        at = await universe.world("w")._handle.address()
        return at.universe, at.world


async def test_the_ledger_of_the_store_itself_is_applied(tmp_path: Path) -> None:
    store, folder = tmp_path / "store", tmp_path / "backups"
    await stock(store, folder)
    await wl.ops.delete_universe(str(store), "default", with_worlds=True)
    said = await cli("restore", folder, store)
    assert said.code == 0, said.err
    assert "NO LEDGER" not in said.out
    async with store_opening.store(str(store), create=False, features=FEATURES) as opened:
        assert {each.kind for each in await ledger_entries.read_all(opened.engine)} >= {ErasedKind.UNIVERSE}
    assert SECRET.encode() not in (store / "data.mdb").read_bytes()


async def test_a_world_whose_key_was_destroyed_does_not_come_back(tmp_path: Path, kept: Path) -> None:
    store, folder, target = tmp_path / "store", tmp_path / "backups", tmp_path / "target"
    async with wl.open(str(store), host=APP, codec=CODEC) as universe:
        world = await universe.create("w", APP)
        await aio.journaled(await world.send(people.Shouted(DELETED)))
        await backup_calls.backup(universe._connection.store, str(folder))
        await key_destruction.destroy_key(universe._connection, await world._handle.address())
    async with store_opening.store(str(target), codec=CODEC, features=FEATURES) as opened:
        made = await backup_calls.restore(str(folder), opened, ledger=kept)
    assert made.erased_again == 1
    async with wl.open(str(target), codec=CODEC) as universe:
        assert [each.name async for each in universe.worlds(status=wl.Status.ARCHIVED)] == []


async def test_a_world_that_forks_need_is_left_and_said(tmp_path: Path, kept: Path) -> None:
    store, folder, target = tmp_path / "store", tmp_path / "backups", tmp_path / "target"
    async with wl.open(str(store), host=APP) as universe:
        world = await universe.create("w", APP)
        await aio.journaled(await world.send(people.Shouted(DELETED)))
    async with wl.open(str(store)) as universe:
        await universe.world("w").fork("fork")
        await backup_calls.backup(universe._connection.store, str(folder))
        at = await universe.world("w")._handle.address()
    entry = LedgerEntry(ErasedKind.WORLD, at.universe, at.world, b"", [], 5)
    ledgers.write(kept, [entry])
    said = await cli("restore", folder, target, "--ledger", kept)
    assert said.code == 1
    assert "not done: world" in said.out
    assert "type `worldline ledger apply` again" in said.out
    async with store_opening.store(str(target), create=False, features=FEATURES) as opened:
        assert entry not in await ledger_entries.read_all(opened.engine), "it is looked at again"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}\n",
        '{"format":"another"}\n',
        HEAD + '{"erased":"x"}\n',
        "[" * 60_000 + "\n",
        HEAD + LINE.replace("00", "0"),
        HEAD + LINE.replace("world", "planet"),
        HEAD + LINE[:-1],
        HEAD + "x" * 200_000,
    ],
)
def test_a_ledger_that_is_damaged_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ledger"
    path.write_text(text)
    with pytest.raises(errors.BadCopy, match=str(path)):
        ledgers.read(path)


def test_a_ledger_is_read_as_it_was_written(tmp_path: Path) -> None:
    one, two = bytes(range(16)), bytes(range(16, 32))
    entries = [
        LedgerEntry(ErasedKind.SUBJECT, one, two, one, [], 1),
        LedgerEntry(ErasedKind.VALUES, one, two, one, [two, one], 2),
        LedgerEntry(ErasedKind.KEY, one, two, b"", [], 3),
        LedgerEntry(ErasedKind.WORLD, one, two, b"", [], 4),
        LedgerEntry(ErasedKind.UNIVERSE, one, b"", b"", [], 5),
    ]
    ledgers.write(tmp_path / "ledger", entries)
    assert ledgers.read(tmp_path / "ledger") == entries
    assert ledger_entries.merged(entries[2:], entries) == entries
