"""Files for their owner alone, whole or not at all: modes, links that others have put there, races, interruptions."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from worldline.base import errors, private_files


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_for_its_owner_alone_and_nothing_else_is_left(tmp_path: Path) -> None:
    file = tmp_path / "a.world"
    private_files.write(file, b"one", replace=False)
    assert (mode(file), file.read_bytes(), list(tmp_path.iterdir())) == (0o600, b"one", [file])
    with pytest.raises(errors.Exists, match="there already"):
        private_files.write(file, b"two", replace=False)
    assert file.read_bytes() == b"one"
    private_files.write(file, b"two", replace=True)
    assert (mode(file), file.read_bytes(), list(tmp_path.iterdir())) == (0o600, b"two", [file])


@pytest.mark.parametrize("replace", [False, True])
def test_nothing_is_written_through_a_link(replace: bool, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    file = tmp_path / "a.world"
    for name in ("a.world", "a.world.partial", "a.world.part", ".a.world.part"):
        (tmp_path / name).symlink_to(precious)
    if replace:
        private_files.write(file, b"data", replace=True)
        assert file.read_bytes() == b"data"
        assert not file.is_symlink()
    else:
        with pytest.raises(errors.Exists):
            private_files.write(file, b"data", replace=False)
    assert precious.read_text() == "precious"


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("raised", [ValueError, KeyboardInterrupt, Interrupted])
def test_what_is_not_put_there_is_removed(raised: type[BaseException], tmp_path: Path) -> None:
    def interrupted() -> None:
        with private_files.draft(tmp_path / "a") as draft:
            draft.write(b"half")
            assert [mode(each) for each in tmp_path.iterdir()] == [0o600]
            raise raised

    with pytest.raises(raised):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_names_cannot_be_guessed(tmp_path: Path) -> None:
    names: set[str] = set()
    for _ in range(20):
        with private_files.draft(tmp_path / "a"):
            names |= {each.name for each in tmp_path.iterdir()}
    assert len(names) == 20


@pytest.mark.parametrize("links", [True, pytest.param(False, marks=pytest.mark.probe("files.no-hard-links"))])
def test_of_many_that_are_written_at_once_one_is_there(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not links:  # a file system that has none
        monkeypatch.setattr(os, "link", no_links)
    file = tmp_path / "a"
    there: list[bytes] = []
    ready = threading.Barrier(8)

    def put(data: bytes) -> None:
        with private_files.draft(file) as draft:
            draft.write(data)
            draft.sync()
            ready.wait(20)
            try:
                draft.put_there()
            except errors.Exists:
                return
            there.append(data)

    threads = [threading.Thread(target=put, args=(bytes([number]),)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)
    assert there == [file.read_bytes()]
    assert list(tmp_path.iterdir()) == [file]


def test_what_is_in_a_folder_has_the_rights_of_its_group_and_none_for_others(tmp_path: Path) -> None:
    for given, folders, files in ((0o700, 0o700, 0o600), (0o755, 0o750, 0o640), (0o2770, 0o2770, 0o660)):
        folder = tmp_path / f"{given:o}"
        folder.mkdir()
        folder.chmod(given)
        modes = private_files.modes_in(folder)
        private_files.make_folder(folder / "inner", modes)
        os.close(private_files.open_file(folder / "file", os.O_WRONLY | os.O_CREAT, modes.file))
        assert (mode(folder / "inner"), mode(folder / "file")) == (folders, files)
        assert modes.unchanging == files & 0o440


def test_keys_that_others_can_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"keys")
    for given in (0o644, 0o640, 0o604, 0o620):
        file.chmod(given)
        with pytest.raises(errors.BadInput, match=f"mode 0{given:o}.*chmod 600 {file}"):
            private_files.read_secret(file, bytes_max=64)
    for given in (0o600, 0o400):
        file.chmod(given)
        assert private_files.read_secret(file, bytes_max=64) == b"keys"
    owner = file.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    for given, fine in ((0o640, True), (0o440, True), (0o660, False), (0o644, False)):
        file.chmod(given)
        if fine:
            assert private_files.read_secret(file, bytes_max=64) == b"keys"  # mounted for a group, by another user
        else:
            with pytest.raises(errors.BadInput):
                private_files.read_secret(file, bytes_max=64)
    with pytest.raises(errors.BadInput, match="cannot read"):
        private_files.read_secret(tmp_path / "nowhere", bytes_max=64)
