"""runs, effect, timer, dead: looking at what is under way, and putting one's hand to it."""

from __future__ import annotations

from pathlib import Path

from tests.cli import cli_kit
from tests.cli.cli_kit import SHOP, run

# --- Runs ------------------------------------------------------------------------------------------------------------


def test_runs_are_known_without_the_program(stocked: Path) -> None:
    """Also what they wait for, and when they ended: before, that needed --app and the whole journal."""
    rows = run("runs", "list", "alice", "--store", stocked, "--json").lines
    assert [row["id"] for row in rows] == ["stuck", "flaky", "order", "nap", "bad", "hello"]
    assert [row["status"] for row in rows] == ["running"] * 4 + ["failed", "finished"]
    waits = {row["id"]: row["waits"] for row in rows}
    assert waits["order"] == ["event Approved", "timer wait"]
    assert waits["stuck"] == ["effect stuck"]
    entries = run("journal", "alice", "--limit", "1000", "--store", stocked, "--json").lines
    ends = {entry["run"]: entry["time"] for entry in entries if entry["kind"] == "run_finished"}
    assert {row["id"]: row["ended"] for row in rows if row["ended"]} == ends


def test_runs_of_a_status(stocked: Path) -> None:
    said = run("runs", "list", "alice", "--status", "failed", "-q", "--store", stocked)
    assert said.out == "bad\n"
    assert run("runs", "list", "alice", "--limit", "2", "-q", "--store", stocked).out == "stuck\nflaky\n"
    assert "no runs here" in run("runs", "list", "bob", "--store", stocked).err


def test_show_a_run(stocked: Path) -> None:
    ended = run("runs", "show", "alice", "hello", "--store", stocked, "--json").json
    assert (ended["status"], ended["result"], ended["args"]) == ("finished", "HELLO ALICE", {"name": "Alice"})
    failed = run("runs", "show", "alice", "bad", "--store", stocked, "--json").json
    assert failed["error"]["message"] == "ValueError: it broke"
    assert "ValueError: it broke" in run("runs", "show", "alice", "bad", "--store", stocked).out
    shown = run("runs", "show", "alice", "bad", "--store", stocked).out
    assert f'  File "{SHOP}", line ' in shown
    assert failed["trace"] in shown
    assert failed["trace"].endswith("ValueError: it broke\n")
    assert ended["trace"] == ""


def test_why_shows_tracebacks(stocked: Path) -> None:
    found = run("why", "alice", "--store", stocked, "--json").json
    assert [each["run"] for each in found["failed"]] == ["bad"]
    traced = {each["kind"]: each["trace"] for each in found["reasons"] if each["trace"]}
    assert traced["retrying"].endswith("OSError: no route to o2\n")
    shown = run("why", "alice", "--store", stocked).out
    assert "run bad has failed" in shown
    assert "    trace  Traceback (most recent call last):\n" in shown
    assert "type   worldline runs show alice bad" in shown


def test_cancel_a_run(store: Path, tmp_path: Path) -> None:
    assert run("runs", "cancel", "alice", "nap", "--store", store).code == 2, "it asks"
    with cli_kit.dev(SHOP, "--store", store, cwd=tmp_path) as host:
        assert run("runs", "cancel", "alice", "nap", "--yes", "--reason", "enough", "--store", store).code == 0
        host.wait_for("    cancelled enough")
        assert run("runs", "cancel", "alice", "nope", "--yes", "--store", store).code == 3
    assert run("runs", "show", "alice", "nap", "--store", store, "--json").json["status"] == "cancelled"


TOLD = """
import worldline as wl

app = wl.Program("told")


@app.workflow
async def stays() -> str:
    try:
        await wl.sleep(3600)
    except wl.Cancelled as cancelled:
        return f"{cancelled.kind.name}: {cancelled.reason}"
    return "never"
"""


def test_a_run_is_told_what_kind_of_cancellation_it_is(tmp_path: Path) -> None:
    app, store = tmp_path / "app.py", ["--store", tmp_path / "store"]
    app.write_text(TOLD)
    with cli_kit.dev("app.py", "--world", "w", *store, cwd=tmp_path) as host:
        host.wait_for("[hosting]")
        for chosen in ([], ["--kind", "user"], ["--kind", "policy"], ["--kind", "host"]):
            kind = chosen[-1] if chosen else "user"
            run_id = "-".join(["r", *chosen])
            assert run("run", "w", "stays", "--id", run_id, "--app", app, "--detach", *store).code == 0
            done = run("runs", "cancel", "w", run_id, "--yes", "--reason", "enough", *chosen, *store)
            assert done.code == 0, done.err
            assert cli_kit.wait_finished(tmp_path / "store", "w", run_id) == f"{kind.upper()}: enough"
        wrong = run("runs", "cancel", "w", "r", "--yes", "--kind", "timeout", *store)
        assert wrong.code == 2
        assert all(each in wrong.err for each in ("user", "policy", "host")), wrong.err


# --- Effects ---------------------------------------------------------------------------------------------------------


def effect(store: Path, name: str) -> dict[str, object]:
    rows = run("effect", "list", "--store", store, "--json").lines
    return next(row for row in rows if row["name"] == name)


def test_effects(stocked: Path) -> None:
    rows = run("effect", "list", "alice", "--store", stocked, "--json").lines
    assert {row["name"]: row["state"] for row in rows} == {"flaky": "waiting", "stuck": "parked"}
    assert run("effect", "list", "bob", "-q", "--store", stocked).out == ""
    parked = run("effect", "list", "--state", "parked", "-q", "--store", stocked).out.split()
    assert parked == [effect(stocked, "stuck")["id"]]
    shown = run("effect", "show", str(effect(stocked, "flaky")["id"])[:8], "--store", stocked, "--json").json
    assert (shown["world"], shown["run"], shown["attempt"]) == ("alice", "flaky", 1)
    assert shown["args"] == {"order": "o2"}
    assert shown["error"] == "OSError: no route to o2"
    assert shown["trace"].endswith("OSError: no route to o2\n")
    assert shown["trace"] in run("effect", "show", shown["id"], "--store", stocked).out
    assert shown["due"] > shown["opened"]
    [tried] = shown["attempts"]
    assert (tried["number"], tried["how"], tried["error"]) == (1, "retried", "OSError: no route to o2")
    assert len(tried["worker"]) == 32
    line = f"worker {tried['worker'][-8:]}  retried: OSError: no route to o2"
    assert line in run("effect", "show", shown["id"], "--store", stocked).out
    assert line in run("runs", "show", "alice", "flaky", "--store", stocked).out


def test_retry_and_park(store: Path) -> None:
    stuck, flaky = str(effect(store, "stuck")["id"]), str(effect(store, "flaky")["id"])
    assert run("effect", "park", stuck, "--store", store).code == 4
    assert run("effect", "retry", stuck, "--store", store).code == 0
    retried = effect(store, "stuck")
    assert (retried["state"], retried["attempt"]) == ("waiting", 0)
    assert run("effect", "retry", stuck, "--store", store).code == 4, "it is due already"
    assert run("effect", "retry", flaky, "--store", store).code == 0
    assert effect(store, "flaky")["state"] == "waiting"
    assert run("effect", "park", flaky, "--store", store).code == 0
    parked = effect(store, "flaky")
    assert (parked["state"], parked["error"]) == ("parked", "OSError: no route to o2")
    assert run("doctor", "--store", store, "--app", SHOP).code == 0


def test_a_retried_effect_is_tried(store: Path, tmp_path: Path) -> None:
    stuck = str(effect(store, "stuck")["id"])
    with cli_kit.dev(SHOP, "--store", store, cwd=tmp_path):
        assert run("effect", "retry", stuck, "--store", store).code == 0
        cli_kit.until(lambda: effect(store, "stuck")["state"] == "parked")
        flaky = effect(store, "flaky")
        assert run("effect", "retry", flaky["id"], "--store", store).code == 0
        cli_kit.until(lambda: effect(store, "flaky")["attempt"] == 2)


# --- Timers ----------------------------------------------------------------------------------------------------------


def test_timers(stocked: Path) -> None:
    rows = run("timer", "list", "--store", stocked, "--json").lines
    assert [(row["name"], row["run"]) for row in rows] == [("sleep", "nap"), ("wait", "order")]
    assert run("timer", "list", "bob", "-q", "--store", stocked).out == ""


def test_cancel_timers(store: Path, tmp_path: Path) -> None:
    """A run that sleeps is told; a limit is lifted, and the wait goes on without it."""
    nap, limit = run("timer", "list", "-q", "--store", store).out.split()
    assert run("timer", "cancel", nap, "--store", store).code == 2, "it asks"
    with cli_kit.dev(SHOP, "--store", store, cwd=tmp_path) as host:
        assert run("timer", "cancel", nap, "--yes", "--store", store).code == 0
        host.wait_for('finished "woken: cancelled"')
        assert run("timer", "cancel", limit[:10], "--yes", "--store", store, "--json").json["world"] == "alice"
        assert run("timer", "list", "-q", "--store", store).out == ""
        assert run("timer", "cancel", nap, "--yes", "--store", store).code == 3
        assert run("send", "alice", "Approved", "by=me", "--store", store).code == 0
        host.wait_for('finished "o1 by me"')
    assert run("replay", "alice", "--prove", "--store", store, "--app", SHOP).code == 0
    assert run("doctor", "--store", store, "--app", SHOP).code == 0


# --- Dead letters ----------------------------------------------------------------------------------------------------


def test_dead_letters(stocked: Path) -> None:
    [row] = run("dead", "list", "--store", stocked, "--json").lines
    assert row["world"] == "alice"
    assert "cents below zero" in row["reason"]
    assert row["item"]["data"] == {"account": "bob", "cents": -1}
    assert run("dead", "list", "bob", "-q", "--store", stocked).out == ""


def test_retry_a_dead_letter(store: Path, tmp_path: Path) -> None:
    letter = run("dead", "list", "-q", "--store", store).out.strip()
    assert run("dead", "retry", "alice", "--store", store).code == 2
    assert run("dead", "retry", "alice", "ffff", "--store", store).code == 3
    with cli_kit.dev(SHOP, "--store", store, cwd=tmp_path) as host:
        assert run("dead", "retry", "alice", letter, "--store", store).code == 0
        host.wait_for("handler failed: ")
    again = run("dead", "list", "-q", "--store", store).out.strip()
    assert again not in ("", letter), "it is a new input, and fails anew"


def test_drop_dead_letters(store: Path) -> None:
    letter = run("dead", "list", "-q", "--store", store).out.strip()
    assert run("dead", "drop", "alice", letter, "--store", store).code == 2, "it asks"
    said = run("dead", "drop", "alice", letter[:12], "--yes", "--store", store, "--json").json
    assert said["letters"] == [letter]
    assert run("dead", "drop", "alice", letter, "--yes", "--store", store).code == 3
    assert run("dead", "drop", "alice", "--all", "--yes", "--store", store).code == 0
