"""Files that `export` writes: of encrypted worlds, by several at once, interrupted, and for whom."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

import worldline as wl
from tests.features.encryption import encrypted
from tests.features.encryption.encrypted import Note, app
from tests.kits import people
from worldline.base import errors
from worldline.features.copies import calls as copy_calls

Joined = people.Joined


async def test_any_world_of_an_encrypted_store_is_exported(tmp_path: Path) -> None:
    program, _ = people.program()
    async with encrypted.opened(tmp_path / "here", host=[app, program]) as here:
        world = await encrypted.live(here)  # has taken an id, has a dead letter and open effects
        still = here.world("w-still")  # has an unread input
        await still.send(Note("later"), id="unread")
        known = await here.create("people", program)
        await (await known.send(Joined("ada", wl.Personal(people.SECRET, of="ada")))).applied(20)
        for each in (world, still, known):
            written = await each.export(tmp_path / each.name)
            assert (await copy_calls.verify(tmp_path / each.name)).chain == written.chain
    async with encrypted.opened(tmp_path / "there", host=[app, program]) as there:
        for name in ("w-still", "people"):
            await (await there.import_world(tmp_path / name)).resume()
        copy = there.world("w-still")
        await copy.resume()
        with pytest.raises(errors.IdReused):
            await copy.send(Note("another"), id="unread")
        assert await copy.ask(encrypted.Count(), timeout=20) == 2
        ada = await there.world("people").ask(people.MailOf("ada"), timeout=20)
        assert ada is not None
        assert ada.value == people.SECRET


async def test_of_exports_into_one_file_one_is_there(tmp_path: Path) -> None:
    async with wl.open(str(tmp_path / "store"), host=app) as universe:
        worlds = [await universe.create(name, app) for name in ("alice", "bob", "carol")]
        for place, world in enumerate(worlds):
            await (await world.send(Note("x" * 50_000 * (1 + place)))).applied(20)
        folder = tmp_path / "files"
        folder.mkdir()
        for turn in range(3):
            file = folder / f"{turn}.world"
            ends = await asyncio.gather(*(each.export(file) for each in worlds), return_exceptions=True)
            assert [type(each) for each in ends if isinstance(each, BaseException)] == [errors.Exists] * 2
            [written] = [each for each in ends if not isinstance(each, BaseException)]
            assert (await copy_calls.verify(file)).chain == written.chain
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert sorted(each.name for each in folder.iterdir()) == ["0.world", "1.world", "2.world"]


async def test_an_export_that_is_interrupted_or_fails_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "taken.world").symlink_to(tmp_path / "nowhere")
    async with wl.open(str(tmp_path / "store"), host=app) as universe:
        world = await universe.create("alice", app)
        await (await world.send(Note("x" * 50_000))).applied(20)
        with pytest.raises(errors.Exists):
            await world.export(folder / "taken.world")
        begun = asyncio.Event()

        def interrupt(done: int, total: int) -> None:
            del done, total
            begun.set()
            task.cancel()

        task = asyncio.ensure_future(copy_calls.export(world._handle, folder / "a.world", progress=interrupt))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert begun.is_set()

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr("worldline.base.private_files.os.fsync", full)
            with pytest.raises(errors.BadInput, match="No space"):
                await world.export(folder / "a.world")
    assert [each.name for each in folder.iterdir()] == ["taken.world"]
    assert not (tmp_path / "nowhere").exists()
