"""Who may read a store's folder: its owner; its group, if it was made for one; and what is said of one that is open."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import worldline as wl
from tests.features.encryption.encrypted import Note, app
from worldline.base import errors
from worldline.features.copies import backup_calls
from worldline.host.feature_list import FEATURES
from worldline.runtime import store_opening


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {
        str(each.relative_to(folder.parent)): stat.S_IMODE(each.stat().st_mode)
        for each in [folder, *sorted(folder.rglob("*"))]
    }


async def lived(folder: Path) -> dict[str, int]:
    """The modes of a store that runs: data, locks, sockets, objects."""
    async with wl.open(str(folder), host=app) as universe:
        world = await universe.ensure("w", app)
        await (await world.send(Note("x"))).applied(20)
        await universe._connection.blobs.put(bytes(17 << 20))  # too large for the store itself
        found = modes(folder)
    kinds = {Path(name).parts[1] for name in found if "/" in name}
    assert kinds >= {"data.mdb", "lock.mdb", "hints", "workers", "objects"}
    return found


def is_folder(mode: int) -> bool:
    return bool(mode & 0o100)


async def test_a_store_and_its_backups_are_for_their_owner(tmp_path: Path) -> None:
    found = await lived(tmp_path / "parent" / "store")
    async with store_opening.store(str(tmp_path / "parent" / "store"), create=False, features=FEATURES) as store:
        await backup_calls.backup(store, str(tmp_path / "backups"))
    found |= modes(tmp_path / "backups")
    assert {mode for mode in found.values() if is_folder(mode)} == {0o700}
    assert {mode for mode in found.values() if not is_folder(mode)} == {0o600, 0o400}


async def test_a_folder_that_was_made_for_a_group_is_shared_by_it(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    folder.chmod(0o2770)
    found = await lived(folder)
    assert {mode for mode in found.values() if is_folder(mode)} == {0o2770}
    assert {mode for mode in found.values() if not is_folder(mode)} == {0o660, 0o440}


async def test_a_store_that_others_can_read_is_opened_with_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    folder.chmod(0o755)
    await (await store_opening.open_store(str(folder), features=FEATURES)).close()  # what is in it is not readable
    (folder / "data.mdb").chmod(0o644)  # as earlier releases made it
    with pytest.warns(errors.ModeWarning, match=f"chmod -R o-rwx {folder}"):
        await (await store_opening.open_store(str(folder), features=FEATURES)).close()
    folder.chmod(0o777)
    (folder / "data.mdb").chmod(0o600)
    with pytest.warns(errors.ModeWarning, match="change it"):
        await (await store_opening.open_store(str(folder), features=FEATURES)).close()
    folder.chmod(0o750)
    await (await store_opening.open_store(str(folder), features=FEATURES)).close()
