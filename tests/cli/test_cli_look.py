"""list, show, why, state, journal, follow: what they answer, for people and as JSON."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import worldline as wl
from tests.cli import cli_kit, role_kit, shop
from tests.cli.cli_kit import SHOP, run
from worldline import testing
from worldline.inspect import entry_text
from worldline.layers import trial, worlds
from worldline.model import leases
from worldline.model.world_records import Status
from worldline.store import kv
from worldline.terminal import output

RFC3339 = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def test_list_is_newest_first(stocked: Path) -> None:
    said = run("list", "--store", stocked, "--json")
    assert said.code == 0
    assert [row["name"] for row in said.lines] == ["carol", "bob", "alice"]
    alice = said.lines[2]
    assert alice["program"] == "shop"
    assert alice["status"] == "active"
    assert alice["hosted"] is False
    assert alice["labels"] == {"team": "red"}
    assert alice["height"] > alice["step"] > 0
    assert len(bytes.fromhex(alice["id"])) == 16


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--limit", "1"], ["carol"]),
        (["--label", "team"], ["alice"]),
        (["--label", "team=red"], ["alice"]),
        (["--label", "team=blue"], []),
        (["--status", "paused"], ["carol"]),
        (["--program", "shop", "--status", "active"], ["bob", "alice"]),
        (["--program", "other"], []),
    ],
)
def test_list_chooses(stocked: Path, words: list[str], names: list[str]) -> None:
    assert run("list", "--store", stocked, "-q", *words).out.split() == names


def test_list_for_people(stocked: Path) -> None:
    said = run("list", "--store", stocked)
    assert said.out.splitlines()[0].split()[:3] == ["NAME", "PROGRAM", "STATUS"]
    assert "team=red" in said.out
    empty = run("list", "--store", stocked, "--status", "archived")
    assert (empty.code, empty.out) == (0, "")
    assert "no worlds" in empty.err


UNTIL_US = 4_000_000_000_000_000


async def quarantine(universe: wl.Universe) -> None:
    """World bob as it is when three processes, and a child, died while they restored it."""
    handle = universe.world("bob")._handle
    at, world = await handle.address(), await handle.describe()
    counted = leases.CrashTrial(3, 0, leases.HolderActivity.NOTHING, restore_deaths=3)
    batch = kv.Batch()
    worlds.change(batch, world, status=Status.PAUSED)
    trial.keep(batch, at, trial.quarantined(counted, until_us=UNTIL_US, verdict="signal 9"))
    [outcome] = await universe._connection.store.engine.commit(batch)
    assert isinstance(outcome, kv.Ok)


def test_list_and_show_say_that_a_world_is_quarantined_and_what_to_type(store: Path) -> None:
    cli_kit.with_universe(store, quarantine)
    command = f"worldline resume bob --store {store}"
    until = output.local(entry_text.when(UNTIL_US))
    rows = {row["name"]: row for row in run("list", "--store", store, "--json").lines}
    shown = run("show", "bob", "--store", store, "--json").json
    for said in (rows["bob"], shown):
        assert (said["status"], said["quarantined"], said["resume"]) == ("paused", 3, command)
        assert said["quarantined_until"].startswith("2096-10-02T07:06:40")
    # Carol was paused by a person.
    assert (rows["carol"]["quarantined"], rows["carol"]["quarantined_until"], rows["carol"]["resume"]) == (0, None, "")
    listed = run("list", "--store", store)
    [line] = [line for line in listed.out.splitlines() if line.startswith("bob")]
    assert "quarantined" in line
    [note] = listed.err.splitlines()
    assert f"bob is quarantined until {until}: 3 processes in a row died" in note
    assert note.endswith(f"`{command}`")
    printed = run("show", "bob", "--store", store).out
    assert f"quarantined until {until}" in printed
    assert command in printed
    assert "quarantined" not in run("show", "carol", "--store", store).out
    assert run(*command.split()[1:]).code == 0
    assert "quarantined" not in (run("list", "--store", store).out + run("list", "--store", store).err)


def test_show(stocked: Path) -> None:
    shown = run("show", "alice", "--store", stocked, "--json").json
    assert shown["name"] == "alice"
    assert shown["names"] == ["alice"]
    assert shown["holder"] is None
    assert (shown["effects"], shown["timers"], shown["parked"], shown["dead"], shown["unread"]) == (2, 2, 1, 1, 0)
    for name in ("chain", "state", "program_hash"):
        assert len(bytes.fromhex(shown[name])) == 32
    assert shown["baseline"]["height"] == shown["height"]
    lines = run("show", "alice", "--store", stocked).out
    assert re.search(r"^holder +none$", lines, re.MULTILINE)


def test_people_see_dates_and_ages(stocked: Path) -> None:
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert re.search(
        rf"^created +{stamp} \(\d+ (s|min) ago\)$", run("show", "alice", "--store", stocked).out, re.MULTILINE
    )
    why = run("why", "alice", "--store", stocked).out
    assert re.search(rf"^    since  {stamp} \(\d+ (s|min) ago\)$", why, re.MULTILINE)
    assert re.search(rf"^    next   {stamp} \(in \d+ (min|h)\)$", why, re.MULTILINE)
    for line in run("journal", "alice", "--store", stocked).out.splitlines():
        assert re.match(rf"{stamp}\.\d{{3}} +\d+ [a-z_]+", line)


def test_names_stand_beside_ids(store: Path, tmp_path: Path) -> None:
    entries = run("journal", "alice", "--store", store).out
    assert re.search(r" effect_result +of=shout intent=[0-9a-f]{32} status=ok", entries)
    assert re.search(r" timer_fired +of=sleep intent=[0-9a-f]{32} ", entries)
    with role_kit.running(["worker", SHOP, "--store", store, "--name", "w7"], cwd=tmp_path) as [worker]:
        assert (
            run("send", "bob", "Deposited", "account=a", "cents=1", "--wait", "--app", SHOP, "--store", store).code == 0
        )
        shown = run("show", "bob", "--store", store).out
        assert f"worker w7 ({worker.worker.hex()}) at epoch " in shown
        assert re.search(r", last heartbeat \d{4}-.* ago\)$", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59, "59 s"), (61, "1 min"), (7_300, "2 h"), (200_000, "2 d")]
)
def test_ages(seconds: int, text: str) -> None:
    assert output.lasting(seconds, units_max=1) == text


def test_show_says_when_it_was_made(stocked: Path) -> None:
    shown = run("show", "alice", "--store", stocked, "--json").json
    assert_time(shown["created"])
    assert_time(shown["changed"])


def assert_time(text: str) -> None:
    assert re.fullmatch(RFC3339, text)


def reasons(store: Path, *words: object) -> dict[str, dict[str, Any]]:
    said = run("why", "alice", "--store", store, "--json", *words)
    assert said.code == 0
    return {reason["kind"]: reason for reason in said.json["reasons"]}


def test_why_names_what_it_waits_for_and_what_to_type(stocked: Path) -> None:
    found = reasons(stocked)
    assert found["retrying"]["error"] == "OSError: no route to o2"
    assert found["retrying"]["until"] > found["retrying"]["since"]
    assert found["retrying"]["run"] == "flaky"
    assert found["retrying"]["command"].startswith("worldline effect retry ")
    assert found["parked"]["error"] == "ValueError: nobody home"
    assert found["parked"]["stuck"] is True
    assert "cents below zero" in found["dead"]["error"]
    assert found["dead"]["command"].startswith("worldline dead retry alice ")
    assert found["wait"]["run"] == "order"
    assert found["wait"]["command"].startswith("worldline send alice Approved ... --to order")
    assert found["timer"]["command"] == "", "a timer that fires later needs no command"
    assert all(f"--store {stocked}" in each["command"] for each in found.values() if each["command"])


def test_why_needs_no_program_to_say_what_runs_wait_for(stocked: Path) -> None:
    """Before, that needed --app."""
    said = run("why", "alice", "--store", stocked, "--json").json
    waits = [reason for reason in said["reasons"] if reason["kind"] == "wait"]
    assert [reason["run"] for reason in waits] == ["order"]
    assert said["note"] == ""


def test_why_puts_what_needs_a_person_first(stocked: Path) -> None:
    said = run("why", "alice", "--store", stocked, "--json").json
    stuck = [reason["stuck"] for reason in said["reasons"]]
    assert stuck == sorted(stuck, reverse=True)
    lines = run("why", "alice", "--store", stocked).out.splitlines()
    assert lines[0].startswith("alice is active at height ")
    assert lines[1].startswith("! ")


def test_why_a_paused_world(stocked: Path) -> None:
    said = run("why", "carol", "--store", stocked, "--json").json
    assert said["reasons"][0]["kind"] == "paused"
    assert said["reasons"][0]["command"].startswith("worldline resume carol")


def test_why_no_process_hosts_it(store: Path) -> None:
    assert run("send", "bob", "Deposited", "account=b", "cents=1", "--store", store).code == 0
    said = run("why", "bob", "--store", store, "--json").json
    kinds = {reason["kind"]: reason for reason in said["reasons"]}
    assert kinds["not_hosted"]["stuck"] is True
    assert kinds["not_hosted"]["command"].startswith("worldline dev FILE")
    assert kinds["inbox"]["what"] == "1 unread input"


def test_why_nothing(stocked: Path) -> None:
    assert (
        "it waits for no event, timer or effect: send it an event, or run a workflow"
        in run("why", "bob", "--store", stocked).out
    )


def test_state(stocked: Path) -> None:
    """Plain data, without any program: before, --app was needed."""
    everything = run("state", "alice", "--store", stocked, "--json")
    assert everything.lines == [{"reducer": "Account", "key": "bob", "value": {"cents": 5}}]
    one = run("state", "alice", "Account", "bob", "--store", stocked)
    assert one.out == '{"cents":5}\n'
    of_one = run("state", "alice", "Account", "--store", stocked, "--json")
    assert of_one.lines == everything.lines
    before = run("state", "alice", "--at", "0", "--store", stocked, "--json")
    assert (before.code, before.lines) == (0, [])


def test_journal_is_newest_first(stocked: Path) -> None:
    said = run("journal", "alice", "--limit", "3", "--store", stocked, "--json")
    heights = [entry["height"] for entry in said.lines]
    assert heights == sorted(heights, reverse=True)
    assert len(heights) == 3
    assert run("journal", "alice", "--limit", "3", "--store", stocked, "-q").out.split() == [str(h) for h in heights]


def test_journal_above_a_height_is_in_order(stocked: Path) -> None:
    said = run("journal", "alice", "--above", "0", "--limit", "2", "--store", stocked, "--json")
    first, second = said.lines
    assert (first["height"], first["kind"], first["event"]) == (1, "event", "Deposited")
    assert first["data"] == {"account": "bob", "cents": 5}
    assert second["height"] == 2
    assert len(bytes.fromhex(first["chain"])) == 32
    assert_time(first["time"])
    people = run("journal", "alice", "--above", "0", "--limit", "1", "--store", stocked).out
    assert 'event=Deposited data={"cents":5,"account":"bob"}' in people


def test_the_exported_journal_is_replayed_by_the_test_kit(stocked: Path, tmp_path: Path) -> None:
    file = tmp_path / "alice.jsonl"
    said = run("journal", "alice", "--export", file, "--store", stocked, "--json").json
    steps = run("show", "alice", "--store", stocked, "--json").json["step"]
    assert said == {"world": "alice", "file": str(file), "above": 0, "entries": said["entries"]}
    assert testing.replay(file, shop.app) == steps
    assert not list(tmp_path.glob("*.part"))


def test_an_export_can_begin_at_a_snapshot(stocked: Path, tmp_path: Path) -> None:
    file = tmp_path / "late.jsonl"
    said = run("journal", "alice", "--export", file, "--above", "1000000", "--store", stocked, "--json").json
    assert said["above"] > 0
    assert testing.replay(file, shop.app) == said["entries"] == 0


def test_an_export_that_cannot_be_written(stocked: Path, tmp_path: Path) -> None:
    said = run("journal", "alice", "--export", tmp_path / "no" / "file", "--store", stocked)
    assert said.code == 2
    assert "cannot be written" in said.err


def test_follow_from_the_beginning_ends_after_so_many(stocked: Path) -> None:
    said = run("follow", "alice", "--above", "0", "--count", "4", "--store", stocked, "--json")
    assert said.code == 0
    assert [entry["height"] for entry in said.lines] == [1, 2, 3, 4]


def test_follow_shows_states_that_are_saved(stocked: Path) -> None:
    words = ["follow", "alice", "--above", "0", "--snapshots", "--timeout", "2", "--store", stocked]
    saved = [each for each in run("snapshots", "alice", "--store", stocked, "--json").lines if each["height"]]
    shown = [each for each in run(*words, "--json").lines if each.get("kind") == "snapshot"]
    assert saved
    assert [each["hash"] for each in shown] == [each["hash"] for each in reversed(saved)]


def test_follow_shows_what_comes(store: Path, tmp_path: Path) -> None:
    with cli_kit.dev(SHOP, "--store", store, cwd=tmp_path):
        height = run("show", "bob", "--store", store, "--json").json["height"]
        assert run("send", "bob", "Deposited", "account=x", "cents=1", "--store", store, "--wait").code == 0
        said = run("follow", "bob", "--above", height, "--count", "1", "--timeout", "20", "--store", store, "--json")
        assert msgspec.json.decode(said.out)["data"] == {"account": "x", "cents": 1}


def test_follow_can_be_bounded_in_time(stocked: Path) -> None:
    said = run("follow", "alice", "--timeout", "0.05", "--store", stocked)
    assert said.code == 6
