"""dev: hosting, showing, taking over edits, ending in order. And init: a project that runs at once."""

from __future__ import annotations

import contextlib
import http.server
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.cli import cli_kit, role_kit
from tests.cli.cli_kit import run

APP = """
from dataclasses import dataclass

import worldline as wl
from words import GREETING

app = wl.Program("greeter")


@dataclass(frozen=True)
class Go:
    word: str = ""


@app.effect
async def shout(text: str) -> str:
    return text.upper()


@app.workflow
async def greet(name: str) -> str:
    wl.log.info("greeting %s", name)
    return await shout(f"{GREETING} {name}")


@app.workflow
async def ordered(name: str) -> str:
    await shout("first")
    found = await wl.wait(Go)
    return f"{found.word} {name}"
"""


def write(folder: Path, text: str = APP, *, greeting: str = "hello") -> None:
    (folder / "words.py").write_text(f"GREETING = {greeting!r}\n")
    (folder / "app.py").write_text(text)


def holder(store: Path, world: str) -> object:
    return run("show", world, "--store", store, "--json").json["holder"]


def test_ctrl_c_leaves_everything_in_order(tmp_path: Path) -> None:
    write(tmp_path)
    store = tmp_path / "s"
    with cli_kit.dev("app.py", "--store", "s", "--world", "alice", cwd=tmp_path) as host:
        assert run("run", "alice", "ordered", "name=x", "--detach", "--id", "o", "--store", store).code == 0
        host.wait_for('shout(text="first") = "FIRST"')
        assert holder(store, "alice") is not None
        assert host.end(signal.SIGINT) == 130
        assert "[stopped] worlds are saved, leases are free" in host.seen
        assert "Traceback" not in host.seen
    assert holder(store, "alice") is None
    assert list((store / "workers").iterdir()) == []
    assert run("show", "alice", "--store", store, "--json").json["baseline"]["step"] > 0
    healthy = run("doctor", "--store", store, "--app", tmp_path / "app.py", "--json")
    assert (healthy.code, healthy.json["findings"]) == (0, [])


def test_sigterm_ends_it_with_zero(tmp_path: Path) -> None:
    write(tmp_path)
    with cli_kit.dev("app.py", "--store", "s", "--world", "alice", cwd=tmp_path) as host:
        assert host.end(signal.SIGTERM) == 0
    assert holder(tmp_path / "s", "alice") is None


def test_ctrl_c_gives_effects_back(tmp_path: Path) -> None:
    """An effect in the middle of an attempt is due again at once, not when its claim runs out."""
    slow = APP.replace("return text.upper()", 'await __import__("asyncio").sleep(3600)\n    return text')
    write(tmp_path, slow)
    store = tmp_path / "s"
    with cli_kit.dev("app.py", "--store", "s", "--world", "alice", cwd=tmp_path) as host:
        assert run("run", "alice", "greet", "name=x", "--detach", "--id", "g", "--store", store).code == 0
        cli_kit.until(lambda: "claimed" in run("effect", "list", "--store", store).out)
        assert host.end() == 130
    [row] = run("effect", "list", "--store", store, "--json").lines
    assert row["state"] == "waiting"
    write(tmp_path)
    with cli_kit.dev("app.py", "--store", "s", cwd=tmp_path) as host:
        host.wait_for('finished "HELLO X"')


def test_killed_and_started_again(tmp_path: Path) -> None:
    write(tmp_path)
    store = tmp_path / "s"
    with cli_kit.dev("app.py", "--store", "s", "--world", "alice", cwd=tmp_path) as host:
        assert run("run", "alice", "ordered", "name=x", "--detach", "--id", "o", "--store", store).code == 0
        host.wait_for('shout(text="first") = "FIRST"')
        host.end(signal.SIGKILL)
    assert run("show", "alice", "--store", store, "--json").json["holder"]["alive"] is False
    assert run("doctor", "--store", store, "--app", tmp_path / "app.py").code == 0
    with cli_kit.dev("app.py", "--store", "s", cwd=tmp_path):
        assert run("send", "alice", "Go", "word=now", "--store", store).code == 0
        assert cli_kit.run("run", "alice", "ordered", "name=x", "--id", "o", "--store", store).out == "now x\n"


def test_an_edit_is_adopted(tmp_path: Path) -> None:
    write(tmp_path)
    store = tmp_path / "s"
    with cli_kit.dev("app.py", "--store", "s", "--world", "alice", cwd=tmp_path) as host:
        assert run("run", "alice", "greet", "name=x", "--store", store).out == "HELLO X\n"
        assert run("run", "alice", "ordered", "name=x", "--detach", "--id", "o", "--store", store).code == 0
        host.wait_for('shout(text="first") = "FIRST"')
        write(tmp_path, APP.replace('f"{found.word} {name}"', 'f"{found.word}, {name}"'))
        host.wait_for("[reloaded] app.py: 1 world adopted it, 1 run goes on")
        assert run("send", "alice", "Go", "word=well", "--store", store).code == 0
        host.wait_for('finished "well, x"')
        write(tmp_path, APP, greeting="goodbye")
        host.wait_for("[reloaded]", count=2)
        assert run("run", "alice", "greet", "name=x", "--store", store).out == "GOODBYE X\n", "neighbours are reloaded"
        assert "[log] [" in host.seen, "what the program logs is shown"


def test_an_edit_that_runs_do_not_fit_blocks_them(tmp_path: Path) -> None:
    write(tmp_path)
    store = tmp_path / "s"
    with cli_kit.dev("app.py", "--store", "s", "--world", "alice", cwd=tmp_path) as host:
        assert run("run", "alice", "ordered", "name=x", "--detach", "--id", "o", "--store", store).code == 0
        host.wait_for('shout(text="first") = "FIRST"')
        write(tmp_path, APP.replace('await shout("first")', "await wl.sleep(1)"))
        host.wait_for("0 runs go on, 1 does not fit and is blocked when it next continues: alice/o")
        host.wait_for("code:    timer 'sleep' 1 s")
        assert run("send", "alice", "Go", "word=back", "--wait", "--store", store).code == 0
        why = run("why", "alice", "--store", store, "--json").json
        blocked = next(reason for reason in why["reasons"] if reason["kind"] == "blocked")
        assert blocked["stuck"] is True
        assert "journal: effect 'shout'" in blocked["error"]
        assert run("runs", "show", "alice", "o", "--store", store, "--json").json["status"] == "blocked"
        write(tmp_path)
        host.wait_for("1 world adopted it")
        host.wait_for('finished "back x"')
        assert host.end() == 130


def test_an_edit_that_cannot_be_loaded_leaves_the_old_code_running(tmp_path: Path) -> None:
    write(tmp_path)
    store = tmp_path / "s"
    with cli_kit.dev("app.py", "--store", "s", "--world", "alice", cwd=tmp_path) as host:
        write(tmp_path, "def broken(:\n")
        host.wait_for("[kept] the old code: app.py cannot be loaded: line 1: ")
        assert run("run", "alice", "greet", "name=x", "--store", store).out == "HELLO X\n"
        write(tmp_path, APP + "\n# nothing new\n")
        host.wait_for("[reloaded] app.py: nothing that recorded runs depend on has changed")


def test_dev_in_json(tmp_path: Path) -> None:
    write(tmp_path)
    host = cli_kit.Dev("app.py", "--store", "s", "--world", "alice", "--json", cwd=tmp_path)
    try:
        host.wait_for('"dev":"hosting"')
        assert run("run", "alice", "greet", "name=x", "--store", tmp_path / "s").code == 0
        assert host.end() == 130
    finally:
        host.close()
    lines = [msgspec.json.decode(line) for line in host.seen.splitlines()]
    entries = [line for line in lines if "height" in line]
    assert [entry["height"] for entry in entries] == list(range(1, len(entries) + 1))
    assert {entry["world"] for entry in entries} == {"alice"}
    assert [line["dev"] for line in lines if "dev" in line] == ["hosting", "log", "stopping", "stopped"]


# --- init ------------------------------------------------------------------------------------------------------------


def test_an_initial_project_runs(tmp_path: Path) -> None:
    folder = tmp_path / "hello"
    said = run("init", folder)
    assert said.code == 0
    assert f"cd {folder} && worldline dev --world alice" in said.out
    with cli_kit.dev("app.py", "--world", "alice", cwd=folder) as host:
        assert run("run", "alice", "greet", "Alice", "seconds=0.01", cwd=folder).out == "HELLO ALICE\n"
        assert run("state", "alice", cwd=folder).out.splitlines()[2].split() == [
            "Guests",
            "-",
            '{"last":"Alice","count":1}',
        ]
        assert run("why", "alice", cwd=folder).code == 0
        assert host.end() == 130
    assert run("replay", "alice", "--prove", cwd=folder).code == 0
    assert run("check", "app.py", cwd=folder).code == 0
    assert run("doctor", cwd=folder).code == 0
    assert run("init", folder).code == 4, "nothing is overwritten"


def test_the_tests_of_an_initial_project_pass(tmp_path: Path) -> None:
    assert run("init", cwd=tmp_path).code == 0
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=cli_kit.environment(),
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


FETCH = """
import worldline as wl

app = wl.Program("fetcher")


@app.workflow
async def fetch(url: str) -> str:
    try:
        return (await wl.http.request("GET", url)).text
    except wl.EffectFailed as error:
        return error.code
"""


class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def web() -> Iterator[int]:
    """A server in a thread of its own: the tests here have no event loop. Gives its port."""
    server = http.server.HTTPServer(("127.0.0.1", 0), Hello)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_file_says_what_its_effects_may_reach(tmp_path: Path) -> None:
    file, store = tmp_path / "fetcher.py", tmp_path / "s"
    file.write_text(FETCH)
    with web() as port, cli_kit.dev("fetcher.py", "--store", "s", "--world", "w", cwd=tmp_path) as host:

        def fetched() -> object:
            words = ["run", "w", "fetch", f"url=http://127.0.0.1:{port}/", "--store", store, "--app", file]
            return run(*words, "--json", "--timeout", 30).json["result"]

        assert fetched() == "egress_refused"
        file.write_text(f"{FETCH}\negress = wl.ops.Egress(allow=['127.0.0.1:{port}'])\n")
        host.wait_for("[reloaded]")
        assert fetched() == "hello"


def test_roles_go_by_it_too_unless_they_are_told_otherwise(tmp_path: Path) -> None:
    file, store = tmp_path / "fetcher.py", tmp_path / "s"
    with web() as port:
        file.write_text(f"{FETCH}\negress = wl.ops.Egress(allow=['127.0.0.1:{port}'])\n")
        common = ["--store", store, "--app", file]
        for allow, expected in (([], "hello"), (["--allow", "example.com"], "egress_refused")):
            with role_kit.running(["up", file, "--store", store, *allow], cwd=tmp_path):
                assert run("create", f"w{len(allow)}", *common).code == 0
                words = ["run", f"w{len(allow)}", "fetch", f"url=http://127.0.0.1:{port}/", *common]
                assert run(*words, "--json", "--timeout", 30).json["result"] == expected
