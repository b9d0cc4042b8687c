"""pause, resume, archive, delete, label, compact, ref."""

from __future__ import annotations

from pathlib import Path

import pytest

import worldline as wl
from tests.cli import cli_kit
from tests.cli.cli_kit import SHOP, run
from worldline.inspect import store_queries


def status(store: Path, world: str) -> str:
    return str(run("show", world, "--store", store, "--json").json["status"])


def test_pause_resume_archive(store: Path) -> None:
    for verb, after in (("pause", "paused"), ("resume", "active"), ("archive", "archived"), ("resume", "active")):
        said = run(verb, "alice", "--store", store, "--json")
        assert (said.code, said.json) == (0, {"name": "alice", "status": after})
        assert status(store, "alice") == after


def test_a_paused_world_stops_at_once_and_goes_on_later(store: Path, tmp_path: Path) -> None:
    """The host is another process: it must be fenced, and must find out when the world may run again."""
    with cli_kit.dev(SHOP, "--store", store, cwd=tmp_path):
        assert run("send", "bob", "Deposited", "account=x", "cents=1", "--wait", "--store", store).code == 0
        assert run("pause", "bob", "--store", store).code == 0
        height = run("show", "bob", "--store", store, "--json").json["height"]
        assert run("send", "bob", "Deposited", "account=x", "cents=1", "--store", store).code == 0
        waited = run("send", "bob", "Deposited", "account=x", "cents=1", "--wait", "--timeout", "0.5", "--store", store)
        assert waited.code == 6
        shown = run("show", "bob", "--store", store, "--json").json
        assert (shown["height"], shown["unread"], shown["holder"]) == (height, 2, None)
        assert run("resume", "bob", "--store", store).code == 0
        assert (
            run("send", "bob", "Deposited", "account=x", "cents=1", "--wait", "--timeout", "8", "--store", store).code
            == 0
        )
    assert run("state", "bob", "Account", "x", "--store", store).out == '{"cents":4}\n'


def test_an_archived_world_does_not_hold_up_others(store: Path, tmp_path: Path) -> None:
    """Its timers and effects fall due and can be given to nobody; everybody else's go on."""
    with cli_kit.dev(SHOP, "--store", store, cwd=tmp_path):
        assert run("run", "bob", "nap", "seconds=0.3", "--detach", "--id", "n", "--store", store).code == 0
        cli_kit.until(lambda: bool(run("timer", "list", "bob", "-q", "--store", store).out))
        assert run("archive", "bob", "--store", store).code == 0
        assert run("run", "alice", "nap", "seconds=0.6", "--timeout", "15", "--store", store).out == "slept\n"
        assert run("resume", "bob", "--store", store).code == 0
        assert cli_kit.wait_finished(store, "bob", "n") == "slept"


def test_compact(store: Path) -> None:
    """Little is left alone. With other settings of the universe it is what the dry run has said, and shown."""
    said = run("compact", "alice", "--store", store)
    assert (said.code, said.out) == (0, "alice: 0 entries moved into 0 segments, 0 bytes\n")
    assert "compacted" not in run("show", "alice", "--store", store).out
    chosen = ["worker.segment_entries=10", "worker.segment_margin=0", "worker.snapshots_kept=1"]
    assert run("universe", "settings", *chosen, "--store", store).code == 0
    planned = run("compact", "alice", "--dry-run", "--store", store, "--json").json
    moved, *dropped, policy = run("compact", "alice", "--dry-run", "--store", store).out.splitlines()
    assert moved == f"alice: {planned['entries']} entries would be moved, up to height {planned['up_to']}"
    heights = ", ".join(map(str, planned["dropped"]))
    snapshots = "snapshot" if planned["snapshots"] == 1 else "snapshots"
    assert dropped == ([f"{planned['snapshots']} {snapshots} would be dropped, at height {heights}"] if heights else [])
    assert policy.startswith("policy: worker.segment_entries=10, worker.segment_ms=86400000, worker.segment_margin=0")
    assert "worker.snapshots_kept=1, worker.snapshots_kept_ms=0" in policy
    assert policy.endswith("; `worldline universe settings` changes it")
    done = run("compact", "alice", "--store", store, "--json").json
    assert (done["entries"], done["height"]) == (planned["entries"], planned["up_to"])
    assert done["snapshots"] == planned["snapshots"]
    assert done["segments"] >= 1
    shown = run("show", "alice", "--store", store, "--json").json
    assert (shown["compacted"], shown["segments"]) == (done["height"], done["segments"])
    assert (
        f"up to height {done['height']}, states are kept above {done['height']}"
        in run("show", "alice", "--store", store).out
    )
    assert run("verify", "alice", "--store", store).code == 0
    assert run("state", "alice", "--at", "1", "--store", store).code == 3


def test_delete_asks(store: Path) -> None:
    assert run("delete", "alice", "--store", store).code == 2
    assert status(store, "alice") == "active"
    said = run("delete", "alice", "--yes", "--store", store, "--json")
    assert (said.code, said.json["status"]) == (0, "deleted")
    assert run("show", "alice", "--store", store).code == 3
    assert run("list", "-q", "--store", store).out.split() == ["carol", "bob"]
    assert run("effect", "list", "-q", "--store", store).out == ""
    assert run("create", "alice", "--store", store, "--app", SHOP).code == 0, "its name is free again"


def test_the_work_of_a_deleted_world_is_forgotten(store: Path) -> None:
    assert run("delete", "alice", "--yes", "--store", store).code == 0

    async def work(universe: wl.Universe) -> int:
        return len([each async for each in store_queries.open_work(universe._connection, None)])

    assert cli_kit.with_universe(store, work) == 0
    assert run("doctor", "--store", store, "--app", SHOP).code == 0


def test_labels(store: Path) -> None:
    said = run("label", "alice", "team-", "tier=gold", "vip", "--store", store, "--json").json
    assert said == {"name": "alice", "labels": {"tier": "gold", "vip": ""}}
    assert run("label", "alice", "--store", store).out == "tier=gold vip\n"
    assert run("list", "-q", "--label", "vip", "--store", store).out == "alice\n"


def test_names(store: Path) -> None:
    assert run("ref", "set", "boss", "alice", "--store", store).code == 0
    assert run("show", "boss", "--store", store, "--json").json["names"] == ["alice", "boss"]
    rows = {row["name"]: row for row in run("ref", "list", "--store", store, "--json").lines}
    assert (rows["boss"]["world"], rows["boss"]["own"]) == ("alice", False)
    assert rows["alice"]["own"] is True
    assert run("ref", "set", "boss", "bob", "--store", store).code == 2, "moving a name asks"
    assert run("ref", "set", "boss", "bob", "--yes", "--store", store).code == 0
    assert run("ref", "set", "boss", "bob", "--yes", "--store", store).code == 4
    assert run("show", "boss", "--store", store, "--json").json["name"] == "bob"
    assert run("ref", "delete", "boss", "--store", store).code == 2
    assert run("ref", "delete", "boss", "--yes", "--store", store).code == 0
    assert run("show", "boss", "--store", store).code == 3
    assert run("ref", "delete", "bob", "--yes", "--store", store).code == 4


def test_a_world_deleted_by_another_name_frees_both(store: Path) -> None:
    assert run("ref", "set", "boss", "bob", "--store", store).code == 0
    assert run("delete", "boss", "--yes", "--store", store).code == 0
    for name in ("boss", "bob"):
        assert run("create", name, "--store", store, "--app", SHOP).code == 0


def test_rename(store: Path) -> None:
    assert run("ref", "rename", "alice", "alicia", "--yes", "--store", store).code == 0
    assert run("show", "alicia", "--store", store, "--json").json["name"] == "alicia"
    assert run("show", "alice", "--store", store).code == 3
    assert run("ref", "rename", "alicia", "bob", "--yes", "--store", store).code == 4


@pytest.mark.parametrize("verb", ["pause", "resume", "archive"])
def test_a_world_that_is_not_there(stocked: Path, verb: str) -> None:
    assert run(verb, "nobody", "--store", stocked).code == 3
