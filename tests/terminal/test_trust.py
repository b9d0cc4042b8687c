"""Files that are used because of where they lie: those of other users are refused, with the way to allow them."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from tests.cli.cli_kit import run
from worldline.base import errors
from worldline.terminal import file_trust

ANOTHER = 65_534
ME = file_trust.User(os.geteuid())
# Who does not own what this process writes; and is not root, who may do everything.
STRANGER = file_trust.User(os.geteuid() + 4_242)
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")

HOSTILE = (
    "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nimport worldline as wl\napp = wl.Program('x')\n"
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a project, and one below it to work in."""
    (tmp_path / "worldline.toml").write_text('app = "app.py"\nkeys = "keys.json"\n')
    (tmp_path / "app.py").write_text(HOSTILE)
    (tmp_path / "keys.json").write_text("{}")
    for name in ("worldline.toml", "app.py", "keys.json"):
        (tmp_path / name).chmod(0o600)
    (tmp_path / "mine").mkdir(mode=0o700)
    tmp_path.chmod(0o700)
    return tmp_path


def refused(path: Path, *, user: file_trust.User = ME, importable: bool = False) -> str:
    try:
        file_trust.check(path, "it", importable=importable, user=user)
    except errors.BadInput as error:
        return str(error)
    return ""


def test_own_files_are_used(project: Path) -> None:
    assert refused(project / "worldline.toml") == ""
    assert refused(project / "app.py", importable=True) == ""
    assert refused(project / "missing") == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="what root owns is trusted by all")
def test_files_of_others_are_not(project: Path) -> None:
    assert "belongs to another user" in refused(project / "worldline.toml", user=STRANGER)


@pytest.mark.parametrize("name", ["worldline.toml", "."])
@pytest.mark.parametrize("mode", [0o666, 0o602, 0o777])
def test_what_others_can_change_is_not(project: Path, name: str, mode: int) -> None:
    (project / name).chmod(mode | (0o700 if name == "." else 0))
    assert "can be changed by other users" in refused(project / "worldline.toml")


def test_a_group_of_one_may_write_and_another_may_not(project: Path) -> None:
    file = project / "worldline.toml"
    file.chmod(0o660)
    own = pwd.getpwuid(os.geteuid())
    assert file_trust._is_own(own.pw_gid, ME) or "can be changed" in refused(file)
    assert not file_trust._is_own(54_321, ME), "a group that is not known here"
    if os.geteuid() == 0:
        os.chown(file, 0, 54_321)
        assert "can be changed by other users (mode 0660)" in refused(file)


def test_in_a_folder_like_tmp_files_are_their_owners(project: Path) -> None:
    project.chmod(0o1777)
    assert refused(project / "worldline.toml") == ""
    assert "can be changed" in refused(project / "app.py", importable=True), (
        "every file of the folder could be imported"
    )


def test_a_link_counts_with_what_it_points_to(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    target = elsewhere / "target.toml"
    target.write_text("")
    (project / "link.toml").symlink_to(target)
    assert refused(project / "link.toml") == ""
    target.chmod(0o666)
    assert "target.toml can be changed" in refused(project / "link.toml")
    target.chmod(0o600)
    elsewhere.chmod(0o777)
    assert "can be changed" in refused(project / "link.toml")


def test_what_is_trusted_is_used(project: Path) -> None:
    (project / "worldline.toml").chmod(0o666)
    for trusted in (str(project), str(project.parent), "*"):
        assert refused(project / "worldline.toml", user=file_trust.User(os.geteuid(), trusted=("", trusted))) == ""
    for other in ("", str(project / "mine"), f"{project}-other"):
        assert refused(project / "worldline.toml", user=file_trust.User(os.geteuid(), trusted=(other,)))


@pytest.mark.parametrize(
    "words", [["list"], ["state", "alice"], ["send", "alice", "X"], ["backup", "list", "x"], ["dev"]]
)
def test_no_command_runs_the_code_of_a_file_that_others_can_change(
    project: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "worldline.toml").chmod(0o666)
    said = run(*words, "--store", "memory://", cwd=project / "mine")
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert f"set WORLDLINE_TRUSTED={project}" in said.err
    assert not (project / "ran").exists()
    monkeypatch.setenv("WORLDLINE_TRUSTED", f"/nowhere:{project}")
    assert "is not used" not in run("list", "--store", "memory://", cwd=project / "mine").err


@pytest.mark.parametrize(
    ("name", "what"), [("app.py", "the app that"), ("keys.json", "the key file that"), (".worldline", "the store in")]
)
def test_what_a_project_names_is_looked_at_too(project: Path, name: str, what: str) -> None:
    (project / ".worldline").mkdir()
    (project / name).chmod(0o777)
    said = run("list", cwd=project)
    assert (said.code, what in said.err, "is not used" in said.err) == (2, True, True), said.err
    assert not (project / "ran").exists()


def test_modules_are_not_imported_from_a_folder_of_all(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", ["/nowhere"])
    folder = project / "mine"
    (folder / "planted_module.py").write_text(HOSTILE)
    folder.chmod(0o1777)
    said = run("domain", "show", "planted_module:Order", cwd=folder)
    assert (said.code, "as a place of modules is not used" in said.err) == (2, True)
    assert not (folder / "ran").exists()


@AS_ROOT
@pytest.mark.parametrize("name", ["worldline.toml", "app.py", "keys.json", ".worldline", "."])
def test_files_that_another_user_has_put_there(project: Path, name: str) -> None:
    (project / ".worldline").mkdir(exist_ok=True)
    os.chown(project / name, ANOTHER, ANOTHER)
    said = run("list", cwd=project / "mine" if name == "." else project)
    assert (said.code, "belongs to another user" in said.err) == (2, True), said.err
    assert not (project / "ran").exists()


@AS_ROOT
def test_sudo_in_ones_own_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(project / "worldline.toml", ANOTHER, ANOTHER)
    os.chown(project, ANOTHER, ANOTHER)
    monkeypatch.setenv("SUDO_UID", str(ANOTHER))
    file_trust.check(project / "worldline.toml", "it")
    monkeypatch.setenv("SUDO_UID", "1")
    with pytest.raises(errors.BadInput, match="belongs to another user"):
        file_trust.check(project / "worldline.toml", "it")
    assert not file_trust.User(4_242, None).owns(ANOTHER)
