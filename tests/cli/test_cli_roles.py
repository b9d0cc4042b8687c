"""Roles as processes: ready lines, signals and exit codes, and clusters of them that outlive any of theirs."""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.cli import cli_kit
from tests.cli.cli_kit import SHOP, run
from tests.cli.role_kit import Role, running
from tests.servers import postgres
from tests.store import postgres_kit
from worldline.features.proofs import calls as proof_calls
from worldline.layers import leases
from worldline.model import ids
from worldline.runtime import operator_calls
from worldline.terminal import program_files

APP = """
import worldline as wl

app = wl.Program("relay")


@app.effect
async def double(number: int) -> int:
    return 2 * number


@app.workflow
async def relay(turns: int) -> int:
    number = 1
    for _ in range(turns):
        number = await double(number)
        await wl.sleep(0.05)
    return number
"""

ROLES: list[list[object]] = [
    ["worker", SHOP],
    ["adapter", SHOP],
    ["timer"],
    ["orchestrator"],
    ["janitor"],
    ["up", SHOP],
]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def server() -> str:
    return postgres.shared().url(schema=postgres_kit.fresh_schema())


@pytest.fixture
def app_file(tmp_path: Path) -> Path:
    path = tmp_path / "relay_app.py"
    path.write_text(APP)
    return path


# --- One by one --------------------------------------------------------------------------------------------------


def test_every_role_says_when_it_is_ready_and_ends_in_order(tmp_path: Path) -> None:
    """All on one store, which the first of them makes, whichever that is. Either signal ends any of them."""
    store = tmp_path / "store"
    commands = [[*words, "--store", store, "--name", f"n{index}"] for index, words in enumerate(ROLES)]
    with running(*commands, cwd=tmp_path) as started:
        for index, (words, role) in enumerate(zip(ROLES, started, strict=True)):
            said = role.said
            assert (said["ready"], said["name"], said["universe"]) == (words[0], f"n{index}", "default")
            assert said["programs"] == (["shop"] if SHOP in words else [])
            assert len(role.worker) == 16
        workers = run("worker", "list", "--store", store, "--json").lines
        assert sorted((each["name"], each["state"]) for each in workers) == [("n0", "alive"), ("n5", "alive")]
        for index, (words, role) in enumerate(zip(ROLES, started, strict=True)):
            assert role.end((signal.SIGTERM, signal.SIGINT)[index % 2]) == 0, role.seen
            assert f'"stopped":"{words[0]}"' in role.seen
            assert "Traceback" not in role.seen
    assert run("worker", "list", "--store", store, "--json").lines == [], "they have said goodbye"


def test_the_ready_line_for_people(tmp_path: Path) -> None:
    worker = Role("worker", SHOP, "--store", "s", "--name", "w", cwd=tmp_path)
    try:
        worker.wait_for("worker w is ready for shop in s; Ctrl-C ends it\n")
        assert worker.end() == 0
        assert "worker w has stopped: leases are free\n" in worker.seen
    finally:
        worker.close()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["worker"], 2, "name the file that declares your program"),
        (["adapter"], 2, "name the file that declares your program"),
        (["up"], 2, "name the file that declares your program"),
        (["worker", "absent.py"], 2, "there is no file absent.py"),
        (["worker", SHOP, "--capacity", "0"], 2, "--capacity"),
        (["worker", SHOP, "--lease-ttl", "0"], 2, "--lease-ttl"),
        (["worker", SHOP, "--label", "name=x"], 2, "a name is given with --name"),
        (["worker", SHOP, "--label", "program:x"], 2, "set by the worker itself"),
        (["worker", SHOP, "--label", "=x"], 2, "a label's name"),
        (["worker", SHOP, "--name", " x"], 2, "a worker's name"),
        (["up", SHOP, "--allow", "http://x"], 2, "http://x"),
        (["timer", "--nope"], 2, "--nope"),
        (["orchestrator", "x"], 2, "unexpected extra argument"),
        (["timer", "--store", "ftp://x"], 2, "no store is opened by ftp://"),
        (["janitor", "--store", SHOP], 2, "is not a folder"),
        (["timer", "--store", "damaged"], 5, "damaged"),
        (["worker", "drain", "nobody"], 3, "no worker 'nobody'"),
        (["lease", "revoke", "nobody"], 3, "no world 'nobody'"),
        (["lease", "assign", "nobody", "a"], 3, "no world 'nobody'"),
        (["lease", "assign", "alice", "nobody"], 3, "no worker 'nobody'"),
        (["lease", "unassign", "nobody"], 3, "no world 'nobody'"),
        (["upgrade", "nobody"], 3, "no world 'nobody'"),
        (["upgrade", "alice"], 3, "no living worker has other code of program 'shop'"),
    ],
    ids=lambda value: " ".join(map(str, value))[-40:] if isinstance(value, list) else "",
)
def test_exit_codes(stocked: Path, tmp_path: Path, words: list[str], code: int, message: str) -> None:
    cli_kit.copy(stocked, tmp_path / ".worldline")
    (tmp_path / "damaged").mkdir(mode=0o700)
    (tmp_path / "damaged" / "data.mdb").write_bytes(b"not a store" * 1000)
    said = run(*words, cwd=tmp_path)
    assert (said.code, said.out) == (code, ""), said
    assert message in said.err
    assert said.err.count("\n") == 1


def test_nouns_that_are_roles_too(stocked: Path) -> None:
    timers = run("timer", "list", "--store", stocked, "--json").lines
    assert len(timers) == 2
    for name in ("worker", "timer"):
        shown = run(name, "--help").out
        assert "start" in shown
        assert "list" in shown
        assert "--scan" in run(name, "start", "--help").out
    for name in ("adapter", "orchestrator", "janitor", "up"):
        assert run(name, "--help").code == 0


def test_the_program_may_come_from_the_project(tmp_path: Path) -> None:
    (tmp_path / "worldline.toml").write_text(f'store = "s"\napp = "{SHOP}"\n')
    with running(["worker"], cwd=tmp_path) as [worker]:
        assert worker.said["programs"] == ["shop"]
        assert worker.said["store"] == "s"
        assert worker.end() == 0


def test_workers_are_shown_with_their_worlds_and_worlds_are_assigned(store: Path, tmp_path: Path) -> None:
    """To a worker that has the program; from one that has not, the lease stays where it is."""
    (tmp_path / "relay.py").write_text(APP)
    commands: list[list[object]] = [["worker", SHOP, "--name", "a"], ["worker", "relay.py", "--name", "b"]]
    with running(*([*each, "--store", store] for each in commands), cwd=tmp_path) as [first, _]:
        assert run("ask", "bob", "Withdraw", "account=a", "cents=0", "--store", store, "--timeout", 60).code == 0
        refused = run("lease", "assign", "bob", "b", "--store", store)
        assert refused.code == 2
        assert "worker 'b' cannot run world 'bob': it does not have its program 'shop'" in refused.err
        shown = run("worker", "show", "a", "--store", store, "--json").json
        [bob] = [each for each in shown["held"] if each["name"] == "bob"]
        assert (bob["program"], bob["status"], bob["universe"]) == ("shop", "active", "default")
        assert f"bob  shop  active  epoch {bob['epoch']}" in run("worker", "show", "a", "--store", store).out
        late = run("lease", "revoke", "bob", "--epoch", bob["epoch"] + 7, "--store", store)
        assert late.out == f"nothing was revoked: the lease of bob is at epoch {bob['epoch']}, not {bob['epoch'] + 7}\n"
        revoked = run("lease", "revoke", "bob", "--epoch", bob["epoch"], "--store", store, "--json").json
        assert revoked["epoch"] == bob["epoch"] + 1
        assert run("lease", "assign", "bob", "a", "--priority", 0, "--store", store).code == 0
        assigned = run("show", "bob", "--store", store, "--json").json["assigned"]
        assert assigned == f"worker a ({first.worker.hex()}), by hand, priority 0"
        assert "it holds no world" in run("worker", "show", "b", "--store", store).out


def test_why_a_pinned_world_does_not_run(store: Path) -> None:
    assert run("label", "bob", "pin=elsewhere", "needs:disk=fast", "--store", store).code == 0
    assert run("send", "bob", "Deposited", "account=a", "cents=1", "--store", store).code == 0
    reason = run("why", "bob", "--store", store, "--json").json["reasons"][0]
    assert reason["kind"] == "not_hosted"
    assert reason["what"].endswith("host program 'shop', where its labels allow: pin=elsewhere, needs:disk=fast")


# --- Together ----------------------------------------------------------------------------------------------------


def greet(store: str, world: str, name: str) -> str:
    """A workflow with a timer and an effect, by whoever hosts the world."""
    said = run("run", world, "greet", f"name={name}", "--store", store, "--timeout", 90)
    assert said.code == 0, said
    return said.out.strip()


def on_store(url: str, do: Callable[[wl.Universe], Any]) -> Any:
    async def main() -> Any:
        async with wl.open(url, create=True) as universe:
            return await do(universe)

    return aio.run(main(), seconds=300)


async def held(universe: wl.Universe, worker: bytes) -> int:
    return len(await operator_calls.list_worker_worlds(universe._connection.store.engine, ids.WorkerId(worker)))


def test_worlds_go_on_at_another_worker_after_kill_9(server: str, tmp_path: Path, app_file: Path) -> None:
    """Two workers, an adapter, timers and an orchestrator; the worker that has most is killed in the middle.

    In a folder: `tests/chaos/test_kills.py`.
    """
    url = server
    program = program_files.load(str(app_file)).programs[0]
    worker: list[object] = ["worker", app_file, "--store", url, "--lease-ttl", 2, "--scan", 1]
    adapter: list[object] = ["adapter", app_file, "--store", url, "--claim-ttl", 2, "--scan", 1]
    rest: list[list[object]] = [["timer", "--store", url, "--scan", 1], ["orchestrator", "--store", url, "--turn", 0.2]]
    with running([*worker, "--name", "a"], [*worker, "--name", "b"], adapter, *rest, cwd=tmp_path) as started:
        on_store(url, lambda universe: _kill_in_the_middle(universe, program, started[:2]))
        survivors = [role for role in started if role.alive]
        assert len(survivors) == 4
        for role in survivors:
            assert role.end() == 0, role.seen
    on_store(url, _nobody_is_left)


async def _kill_in_the_middle(universe: wl.Universe, program: wl.Program, workers: list[Role]) -> None:
    worlds = [await universe.create(f"w{number}", program) for number in range(5)]
    runs = [await world.start(program.workflows["relay"](12), id="r") for world in worlds]

    async def under_way() -> bool:
        return min([(await world.head()).height for world in worlds]) > 8

    await aio.until(under_way, seconds=120)
    counts = [await held(universe, role.worker) for role in workers]
    workers[counts.index(max(counts))].end(signal.SIGKILL)
    assert await asyncio.gather(*(run.result(120) for run in runs)) == [2**12] * 5
    for world in worlds:
        proof = await proof_calls.prove(world._handle, programs=[program])
        assert proof.holds, proof


async def _nobody_is_left(universe: wl.Universe) -> None:
    """Leases are free. Of the one that was killed a record may be left, until somebody comes across it."""
    async for meta in universe.worlds():
        at = await universe.world(meta.name)._handle.address()
        read = await universe._connection.store.engine.read(*leases.reads(at))
        assert leases.decode(at, read.value(0), read.value(1), read.value(2)).holder is None


def test_a_worker_is_drained_and_used_again(folder: str, tmp_path: Path) -> None:
    """On every engine: `tests/cluster/test_orchestrator.py`."""
    url = folder
    worker: list[object] = ["worker", SHOP, "--store", url, "--lease-ttl", 2, "--scan", 0.3]
    others: list[list[object]] = [["adapter", SHOP, "--store", url], ["timer", "--store", url]]
    with running([*worker, "--name", "a"], *others, cwd=tmp_path) as [first, *_]:
        assert run("create", "w", "--store", url, "--app", SHOP).code == 0
        assert greet(url, "w", "A") == "HELLO A"
        assert _worlds(url) == {"a": ("alive", 1)}
        with running([*worker, "--name", "b"], cwd=tmp_path) as [second]:
            drained = run("worker", "drain", "a", "--store", url).out
            assert drained == f"worker a ({first.said['worker']}) gives its worlds back\n"
            cli_kit.until(lambda: _worlds(url)["a"] == ("draining", 0), "the worker is empty")
            assert greet(url, "w", "B") == "HELLO B"
            assert _worlds(url) == {"a": ("draining", 0), "b": ("alive", 1)}
            again = run("worker", "undrain", first.said["worker"], "--store", url, "--json")
            assert (again.code, again.json["state"]) == (0, "alive")
            epoch = run("show", "w", "--store", url, "--json").json["epoch"]
            revoked = run("lease", "revoke", "w", "--store", url, "--json")
            assert revoked.json == {"name": "w", "epoch": epoch + 1}
            assert greet(url, "w", "C") == "HELLO C"
            assert run("show", "w", "--store", url, "--json").json["epoch"] > epoch + 1
            for name, role in (("b", second), ("a", first)):
                given = run("lease", "assign", "w", name, "--store", url, "--json")
                assert given.json == {"name": "w", "worker": role.said["worker"]}
                assert greet(url, "w", "D") == "HELLO D"
                cli_kit.until(lambda: _worlds(url)[name][1] == 1, "the world is where it was assigned")  # noqa: B023
            assert run("lease", "unassign", "w", "--store", url).out == "any worker may run w\n"
            assert second.end() == 0


def test_a_world_is_upgraded_while_its_code_still_runs(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    code = (
        "import worldline as wl\nfrom dataclasses import dataclass\napp = wl.Program('two')\n\n"
        "@dataclass(frozen=True)\nclass Which(wl.Request[str]):\n    pass\n\n"
        "@app.reducer()\n@dataclass\nclass R:\n    @wl.on\n    def which(self, event: Which) -> str:\n"
    )
    files = [tmp_path / "one" / "app.py", tmp_path / "two" / "app.py"]
    for file in files:
        file.parent.mkdir()
        file.write_text(f"{code}        return {file.parent.name!r}\n")
    host: list[list[object]] = [["worker", file, "--store", store, "--name", file.parent.name] for file in files]
    which: list[object] = ["ask", "w", "Which", "--store", store, "--app", files[0], "--timeout", 20]
    with running(*host, cwd=tmp_path):
        assert run("create", "w", "--store", store, "--app", files[0]).code == 0
        assert run(*which).out == "one\n"
        assert run("upgrade", "w", "--store", store, "--json").json["changed"] is True
        cli_kit.until(lambda: _worlds(store)["two"][1] == 1, "the world is at the worker with the other code")
        assert run(*which).out == "two\n"
        listed = {each["name"]: each["code"]["two"] for each in run("worker", "list", "--store", store, "--json").lines}
        assert len(set(listed.values())) == 2
        assert run("upgrade", "w", "--to", listed["two"][:8], "--store", store, "--json").json["changed"] is False


def _worlds(url: str) -> dict[str, tuple[str, int]]:
    listed = run("worker", "list", "--store", url, "--json").lines
    return {each["name"]: (each["state"], each["worlds"]) for each in listed}


def test_a_pinned_world_runs_where_it_is_pinned(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    up: list[object] = ["up", SHOP, "--store", store, "--scan", 1]
    with running([*up, "--name", "a"], [*up, "--name", "b", "--label", "disk=fast"], cwd=tmp_path):
        for world, label in (("p", "pin=b"), ("q", "needs:disk=fast"), ("r", "pin=a")):
            assert run("create", world, "--store", store, "--app", SHOP, "--label", label).code == 0
            assert greet(store, world, world) == f"HELLO {world.upper()}"
        assert _worlds(store) == {"a": ("alive", 1), "b": ("alive", 2)}
        assert "disk=fast" in run("worker", "list", "--store", store).out


def test_a_process_that_serves_many_universes(folder: str, app_file: Path, tmp_path: Path) -> None:
    """Those that are named, those that fit a pattern, and those that come later. On every engine:
    `tests/runtime/test_many_universes.py`.
    """
    url = folder
    roles: list[list[object]] = [
        ["worker", app_file, "--universe", "tenant-*", "--universe", "named"],
        ["adapter", app_file, "--all-universes"],
        ["timer", "--all-universes"],
        ["orchestrator", "--universe", "*"],
        ["janitor", "--all-universes"],
    ]
    here = ["--store", url, "--json"]
    with running(
        *(
            [*words, "--store", url, "--scan", 1]
            if words[0] in ("worker", "adapter", "timer")
            else [*words, "--store", url]
            for words in roles
        ),
        cwd=tmp_path,
    ) as started:
        assert started[0].said["universes"] == ["tenant-*", "named"]
        assert "universe" not in started[0].said
        for name in ("tenant-a", "tenant-b", "other"):
            assert run("universe", "create", name, *here).code == 0
        for name in ("tenant-a", "tenant-b", "named"):
            there = [*here, "--universe", name]
            assert run("create", "w", "--app", app_file, *there).code == 0
            assert run("run", "w", "relay", "turns=3", "--app", app_file, "--timeout", 60, *there).json["result"] == 8
            cli_kit.until(functools.partial(has_worker, there, started[0].said["worker"]), "its worker")
        assert run("worker", "list", *here, "--universe", "other").lines == []
        assert all(role.end() == 0 for role in started)


def has_worker(there: Sequence[object], worker: str) -> bool:
    return [each["id"] for each in run("worker", "list", *there).lines] == [worker]


def test_universes_that_cannot_be_served(tmp_path: Path) -> None:
    here = ["--store", tmp_path / "store", "--json"]
    both = run("timer", "--all-universes", "--universe", "a", *here)
    assert (both.code, both.error["code"]) == (2, "bad_input")
    assert run("timer", "--universe", "", "--universe", "b", *here).code == 2
