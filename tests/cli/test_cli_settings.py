"""Settings of role processes: from `worldline.toml`, the environment and `--set`; shown with their origins by
`worldline settings`; what is no setting is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import aio
from tests.cli.cli_kit import SHOP, run
from tests.cli.role_kit import Role
from worldline.base import errors
from worldline.host.feature_list import FEATURES
from worldline.layers import leases
from worldline.model import ids, setting_names, settings
from worldline.runtime import store_opening
from worldline.terminal import configuration, store_choice

TOML = """
store = "s"
on_hang = "report"

[worker]
max_inbox_batch = 64
segment_changes = true
labels = { zone = "a" }

[cache]
folder = "cached"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "worldline.toml").write_text(TOML)
    return tmp_path


def listed(*words: str, cwd: Path) -> dict[str, tuple[Any, str]]:
    rows = run("settings", *words, "--json", cwd=cwd).lines
    return {row["name"]: (row["value"], row["origin"]) for row in rows}


def test_each_value_has_its_origin(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDLINE_SET_WORKER_SCAN_MS", "700")
    monkeypatch.setenv("WORLDLINE_CACHE_BYTES", "2097152")
    found = listed("--set", "worker.lease_ttl_ms=4_000", "--set", "pressure.inbox_items_max=50", cwd=project)
    assert list(found) == list(setting_names.ALL)
    changed = {name: each for name, each in found.items() if each[1] != "default"}
    assert changed == {
        "worker.lease_ttl_ms": (4000, "--set"),
        "worker.heartbeat_ms": (1000, "worker.lease_ttl_ms"),
        "worker.scan_ms": (700, "WORLDLINE_SET_WORKER_SCAN_MS"),
        "worker.max_inbox_batch": (64, "worldline.toml"),
        "worker.segment_changes": (True, "worldline.toml"),
        "worker.labels": ({"zone": "a"}, "worldline.toml"),
        "pressure.inbox_items_max": (50, "--set"),
        "cache.folder": ("cached", "worldline.toml"),
        "cache.bytes_max": (2097152, "WORLDLINE_CACHE_BYTES"),
        "on_hang": ("report", "worldline.toml"),
    }
    assert listed("--changed", "worker", cwd=project) == {
        name: each
        for name, each in changed.items()
        if name.startswith("worker.") and each[1] != "--set" and name != "worker.heartbeat_ms"
    }


def test_the_last_that_names_it_decides(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert listed(cwd=project)["worker.max_inbox_batch"] == (64, "worldline.toml")
    variable = "WORLDLINE_SET_WORKER_MAX_INBOX_BATCH"
    monkeypatch.setenv(variable, "32")
    assert listed(cwd=project)["worker.max_inbox_batch"] == (32, variable)
    assert listed("--set", "worker.max_inbox_batch=8", cwd=project)["worker.max_inbox_batch"] == (8, "--set")


def test_for_people(tmp_path: Path) -> None:
    said = run("settings", "timer", "--set", "timer.batch=5", cwd=tmp_path)
    assert [line.split() for line in said.out.splitlines() if line.startswith("timer.")] == [
        ["timer.scan_ms", "5000", "default", "5000", "1", "to", "31622400000"],
        ["timer.batch", "5", "--set", "512", "1", "to", "2048"],
    ]
    assert run("settings", "--changed", cwd=tmp_path).err == "no setting is changed\n"


WRONG = [
    (["--set", "worker.max_inbox_bach=4"], "", {}, "--set: no setting 'worker.max_inbox_bach'; `worldline settings`"),
    (["--set", "worker.max_inbox_bach=4"], "", {}, "did you mean 'worker.max_inbox_batch'"),
    (["--set", "max_inbox_batch=4"], "", {}, "did you mean 'worker.max_inbox_batch'?"),
    (["--set", "worker.scan_ms"], "", {}, "--set takes NAME=VALUE, such as worker.max_inbox_batch=64"),
    (["--set", "worker.scan_ms=5", "--set", "worker.scan_ms=6"], "", {}, "names worker.scan_ms twice"),
    (["--set", "worker.scan_ms=soon"], "", {}, "worker.scan_ms is 'soon'; use a whole number from 1 to"),
    (["--set", "worker.scan_ms=0"], "", {}, "--set: worker.scan_ms is 0; use a whole number from 1 to"),
    (["--set", "worker.segment_changes=yes"], "", {}, "worker.segment_changes is 'yes'; use true or false"),
    (["--set", "on_hang=explode"], "", {}, '--set: on_hang is \'explode\'; use "report" or "exit"'),
    (["--set", "worker.labels= x=1"], "", {}, "a label's name must be printable text"),
    ([], "[worker]\nmax_inbox_bach = 3", {}, "no setting 'worker.max_inbox_bach'; `worldline settings` lists"),
    ([], "[wroker]\nscan_ms = 3", {}, "did you mean 'worker'"),
    ([], "worker = 3", {}, "worker is a section: [worker]"),
    ([], "[worker]\nscan_ms = 0", {}, "worldline.toml: worker.scan_ms is 0; use a whole number"),
    ([], "[worker]\nscan_ms = 1.5", {}, "worker.scan_ms is 1.5; use 1 to 31622400000"),
    ([], "[worker]\nscan_ms = 1e400", {}, "worker.scan_ms is inf"),
    ([], "[worker]\nsegment_changes = 1", {}, "worldline.toml: worker.segment_changes is 1; use True or False"),
    ([], "[worker.labels]\nzone = 1", {}, "worker.labels is {'zone': 1}; use NAME=VALUE,..."),
    ([], "settings = { a = 1 }", {}, "no word for a project or setting 'settings'"),
    ([], "", {"WORLDLINE_SET_WORKER_SCAN": "5"}, "did you mean 'WORLDLINE_SET_WORKER_SCAN_MS'"),
    ([], "", {"WORLDLINE_SET_WORKER_SCAN_MS": "x"}, "WORLDLINE_SET_WORKER_SCAN_MS: worker.scan_ms is 'x'"),
    ([], "", {"WORLDLINE_SET_WORKER_SCAN_MS": "0"}, "WORLDLINE_SET_WORKER_SCAN_MS: worker.scan_ms is 0"),
    (["--set", "worker.lease_ttl_ms=1000", "--set", "worker.heartbeat_ms=900"], "", {}, "--set: worker.heartbeat_ms"),
]


@pytest.mark.parametrize(("words", "toml", "variables", "message"), WRONG, ids=[each[3][:60] for each in WRONG])
@pytest.mark.parametrize("command", [["settings"], ["janitor"], ["dev", SHOP]], ids=["settings", "janitor", "dev"])
def test_what_is_no_setting_is_refused(
    command: list[str],
    words: list[str],
    toml: str,
    variables: dict[str, str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "worldline.toml").write_text(toml)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    said = run(*command, *words, cwd=tmp_path)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert message in said.err
    assert [each.name for each in tmp_path.iterdir()] == ["worldline.toml"], "no store was made"


def test_an_option_and_set_may_not_both_name_it(tmp_path: Path) -> None:
    said = run("worker", SHOP, "--capacity", "5", "--set", "worker.max_worlds_warm=6", cwd=tmp_path)
    assert said.code == 2
    assert "worker.max_worlds_warm is given by --capacity and by --set; leave one away" in said.err


ROLES = [["worker", "start"], ["adapter"], ["timer", "start"], ["orchestrator"], ["janitor"], ["up"], ["dev"]]


@pytest.mark.parametrize("words", ROLES, ids=" ".join)
def test_every_role_has_the_option(words: list[str]) -> None:
    assert "--set NAME=VALUE" in run(*words, "--help").out


def test_a_worker_goes_by_its_settings(project: Path) -> None:
    """What the file says of labels, and the command line of the heartbeat, is what other processes see."""
    worker = Role("worker", SHOP, "--name", "w", "--json", "--set", "worker.lease_ttl_ms=7777", cwd=project)
    try:
        worker.wait_for('"ready":"worker"')
        [row] = run("worker", "list", "--json", cwd=project).lines
        assert row["labels"] == {"zone": "a"}
        assert aio.run(ttl_ms(project / "s", worker.worker)) == 7777
        assert worker.end() == 0
    finally:
        worker.close()


async def ttl_ms(store: Path, worker: bytes) -> int:
    """What the heartbeat of a worker says of its length."""
    async with store_opening.store(str(store), create=False, features=FEATURES) as opened:
        raw = (await opened.engine.read(leases.get_heartbeat(ids.WorkerId(worker)))).value(0)
    life = leases.decode_heartbeat(ids.WorkerId(worker), raw)
    assert life is not None
    return life.sign.ttl_us // 1000


def test_names_are_those_of_the_classes() -> None:
    wanted = {name: setting_names.get(settings.Settings(), name) for name in setting_names.ALL}
    assert setting_names.made(wanted) == settings.Settings()
    assert len(setting_names.VARIABLES) == len(setting_names.ALL)
    for each in setting_names.ALL.values():
        assert setting_names.value_of(each.name, setting_names.text_of(each.default)) == each.default


def test_settings_of_the_project_reach_every_command(tmp_path: Path) -> None:
    (tmp_path / "worldline.toml").write_text("[pressure]\ninbox_items_max = 5\n")
    _, project = store_choice.nearest(tmp_path)
    assert project.settings == {"pressure.inbox_items_max": 5}
    place = store_choice.StoreChoice("s", "default", None, [], False, False, settings=project.settings)
    assert configuration.configure(place).settings.pressure.inbox_items_max == 5
    with pytest.raises(errors.BadInput, match="no setting 'x'"):
        configuration.parse(["x=1"])
