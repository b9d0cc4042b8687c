"""create, send, ask, run against a host in another process; and what happens where nobody hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import worldline as wl
from tests.cli import cli_kit, shop
from tests.cli.cli_kit import SHOP, Said, run


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store that a `worldline dev` hosts."""
    folder = tmp_path_factory.mktemp("talk")
    with cli_kit.dev(SHOP, "--store", folder / "store", "--world", "alice", "--world", "bob", cwd=folder):
        yield folder / "store"


def typed(store: Path, *words: object, stdin: str = "") -> Said:
    return run(*words, "--store", store, "--app", SHOP, stdin=stdin)


def test_run_shows_the_result(hosted: Path) -> None:
    assert run("run", "alice", "greet", "name=Alice", "--store", hosted).out == "HELLO ALICE\n"
    assert typed(hosted, "run", "alice", "greet", "Bob").out == "HELLO BOB\n"
    assert typed(hosted, "run", "alice", "greet", "Bob", "seconds=0.01").out == "HELLO BOB\n"


def test_the_same_id_is_the_same_run(hosted: Path) -> None:
    first = run("run", "alice", "greet", "name=Once", "--id", "once", "--store", hosted, "--json").json
    assert first == {
        "world": "alice",
        "run": "once",
        "workflow": "greet",
        "status": "finished",
        "result": "HELLO ONCE",
    }
    assert typed(hosted, "run", "alice", "greet", "name=Once", "--id", "once", "--json").json == first
    other = run("run", "alice", "greet", "name=Twice", "--id", "once", "--store", hosted)
    assert other.code == 4
    assert "use a new id" in other.err


def test_a_run_that_fails(hosted: Path) -> None:
    said = run("run", "alice", "broken", "--store", hosted)
    assert said.code == 1
    assert "it broke" in said.err


def test_a_workflow_that_is_not_there(hosted: Path) -> None:
    for said in (run("run", "alice", "nope", "--store", hosted), typed(hosted, "run", "alice", "nope")):
        assert said.code == 3
        assert "has no workflow 'nope'" in said.err


def test_a_run_can_be_started_and_left(hosted: Path) -> None:
    said = run("run", "alice", "nap", "seconds=0.05", "--detach", "--id", "left", "--store", hosted)
    assert (said.code, said.out) == (0, "left\n")
    assert cli_kit.wait_finished(hosted, "alice", "left") == "slept"


def test_a_run_that_takes_too_long(hosted: Path) -> None:
    said = run("run", "alice", "nap", "--timeout", "0.3", "--store", hosted)
    assert said.code == 6
    assert (
        f"no answer within 0.3 s; world 'alice' goes on with it: see `worldline why alice --store {hosted}`" in said.err
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["greet"], "missing a required argument: 'name'"),
        (["greet", "name=a", "seconds=soon"], "seconds: not a float"),
        (["greet", "name=a", "nome=b"], "greet() has no parameter 'nome'; it has name, seconds; did you mean 'name'?"),
        (["greet", "name=a", "name=b"], "name is given twice"),
        (["greet", "--data", "[1]"], "must be a JSON object"),
        (["greet", "--data", '{"name": 5}'], "not a str"),
        (["greet", "name=a", "--data", "{}"], "not both"),
    ],
)
def test_arguments_are_checked_where_the_program_is_known(hosted: Path, words: list[str], message: str) -> None:
    said = typed(hosted, "run", "alice", *words)
    assert said.code == 2
    assert message in said.err


def test_send_and_state(hosted: Path) -> None:
    assert run("send", "bob", "Deposited", "account=x", "cents=5", "--store", hosted).code == 0
    said = typed(hosted, "send", "bob", "Deposited", "account=x", "cents=6", "--wait", "--json").json
    assert (said["sent"], said["taken"], said["reason"]) == (True, True, None)
    assert run("state", "bob", "Account", "x", "--store", hosted).out == '{"cents":11}\n'


def test_a_correlation_is_kept(hosted: Path) -> None:
    sent = ["send", "bob", "Deposited", "account=corr", "cents=5", "--correlation", "order-7", "--wait", "--json"]
    height = run(*sent, "--store", hosted).json["height"]
    shown = run("journal", "bob", "--above", height - 1, "--limit", "1", "--store", hosted, "--json").lines
    assert [each["correlation"] for each in shown if "correlation" in each] == ["order-7"]
    empty = run("send", "bob", "Deposited", "account=corr", "cents=5", "--correlation", "", "--store", hosted)
    assert (empty.code, "a correlation must not be empty" in empty.err) == (2, True)


def test_send_takes_json_from_anywhere(hosted: Path, tmp_path: Path) -> None:
    data = '{"account": "json", "cents": 2}'
    (tmp_path / "event.json").write_text(data)
    assert typed(hosted, "send", "bob", "Deposited", "--data", data, "--wait").code == 0
    assert typed(hosted, "send", "bob", "Deposited", "--data", f"@{tmp_path / 'event.json'}", "--wait").code == 0
    assert typed(hosted, "send", "bob", "Deposited", "--data", "-", "--wait", stdin=data).code == 0
    assert run("state", "bob", "Account", "json", "--store", hosted).out == '{"cents":6}\n'
    assert typed(hosted, "send", "bob", "Deposited", "--data", "@absent").code == 2


def test_the_same_id_is_the_same_event(hosted: Path) -> None:
    for _ in range(2):
        words = ["send", "bob", "Deposited", "account=same", "cents=1", "--id", "one", "--wait"]
        assert typed(hosted, *words).code == 0
    assert run("state", "bob", "Account", "same", "--store", hosted).out == '{"cents":1}\n'
    assert typed(hosted, "send", "bob", "Deposited", "account=same", "cents=2", "--id", "one").code == 4


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["Deposited", "account=x"], 2, "missing required field `cents`"),
        (["Deposited", "account=x", "cents=many"], 2, "cents: not an int"),
        (["Deposited", "account=x", "cents=1", "sents=2"], 2, "has no field 'sents'; it has account, cents"),
        (["Deposited", "x"], 2, "write FIELD=VALUE"),
        (
            ["Deposit", "account=x"],
            3,
            "has no event 'Deposit'; it has Deposited, Withdraw, Approved; did you mean 'Deposited'?",
        ),
    ],
)
def test_events_are_checked_where_the_program_is_known(hosted: Path, words: list[str], code: int, message: str) -> None:
    said = typed(hosted, "send", "bob", *words)
    assert said.code == code
    assert message in said.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [(["Nope", "a=1"], "nothing here takes a Nope"), (["Deposited", "account=x", "cents=-1"], "cents below zero")],
)
def test_an_event_that_is_not_taken(hosted: Path, words: list[str], reason: str) -> None:
    said = run("send", "bob", *words, "--wait", "--store", hosted, "--json")
    assert said.code == 1
    assert said.json["taken"] is False
    assert reason in said.json["reason"]


def test_send_to_a_run(hosted: Path) -> None:
    assert run("run", "bob", "approval", "order=o9", "--detach", "--id", "o9", "--store", hosted).code == 0
    assert typed(hosted, "send", "bob", "Approved", "by=me", "--to", "o9", "--wait").code == 0
    assert cli_kit.wait_finished(hosted, "bob", "o9") == "o9 by me"


def test_no_input_is_overlooked(hosted: Path) -> None:
    """Two sent in a row: the second finds the first one's hint, which the host is about to take away."""

    async def send(universe: wl.Universe) -> None:
        world = universe.world("bob")
        for _ in range(60):
            await world.send(shop.Deposited("race", 1))
            await (await world.send(shop.Deposited("race", 1))).applied(timeout=5)

    cli_kit.with_universe(hosted, send)
    assert run("state", "bob", "Account", "race", "--store", hosted).out == '{"cents":120}\n'


def test_what_is_no_request_is_not_asked(hosted: Path) -> None:
    before = run("journal", "bob", "--store", hosted, "--json").out
    said = typed(hosted, "ask", "bob", "Deposited", "account=ask", "cents=5")
    assert said.code == 2
    assert "Deposited is not a request, so it has no answer: send it" in said.err
    assert run("journal", "bob", "--store", hosted, "--json").out == before


def test_ask(hosted: Path) -> None:
    assert typed(hosted, "send", "alice", "Deposited", "account=ask", "cents=5", "--wait").code == 0
    said = typed(hosted, "ask", "alice", "Withdraw", "account=ask", "cents=2", "--json").json
    assert said == {"world": "alice", "request": "Withdraw", "answer": 3}
    assert run("ask", "alice", "Withdraw", "account=ask", "cents=1", "--store", hosted).out == "2\n"
    refused = run("ask", "alice", "Withdraw", "account=ask", "cents=9", "--store", hosted)
    assert (refused.code, refused.err) == (4, "error: insufficient funds\n")


def test_create(hosted: Path) -> None:
    said = typed(hosted, "create", "dora", "--label", "team=blue", "--label", "vip", "--json").json
    assert (said["name"], said["program"]) == ("dora", "shop")
    assert run("list", "-q", "--label", "vip", "--store", hosted).out == "dora\n"
    assert typed(hosted, "create", "dora").code == 4
    assert typed(hosted, "create", "eve", "--program", "other").code == 2
    assert run("create", "eve", "--store", hosted).code == 2
    assert typed(hosted, "run", "dora", "greet", "name=Dora").out == "HELLO DORA\n"


def test_what_was_sent_without_a_host_waits(store: Path, tmp_path: Path) -> None:
    """It says the same each time, and is sent once."""
    said = run("run", "bob", "greet", "name=Later", "--id", "later", "--timeout", "0.1", "--store", store)
    assert said == run("run", "bob", "greet", "name=Later", "--id", "later", "--timeout", "0.1", "--store", store)
    assert said.code == 6
    assert f"type `worldline dev FILE --store {store}`" in said.err
    with cli_kit.dev(SHOP, "--store", store, cwd=tmp_path) as host:
        host.wait_for('finished "HELLO LATER"')
