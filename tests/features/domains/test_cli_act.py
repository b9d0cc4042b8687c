"""act, explain, trace, abandon and patch against a host in another process, without the program."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import cli_kit
from tests.cli.cli_kit import Said, run

ORDERS = Path(__file__).parent / "orders.py"


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("act")
    with cli_kit.dev(ORDERS, "--store", folder / "store", "--world", "shop", cwd=folder):
        yield folder / "store"


def said(store: Path, *words: object) -> Said:
    return run(*words, "--store", store)


def test_an_order_is_filled_explained_previewed_and_paid(hosted: Path) -> None:
    never_run = said(hosted, "explain", "shop", "Order.pay", "--key", "o")
    assert (never_run.code, "or was never run" in never_run.err) == (3, True)
    refused = said(hosted, "explain", "shop", "Order.pay", "--key", "o", "--app", ORDERS)
    assert (refused.code, refused.out) == (1, "no: cents > 0 is false (cents = 0)\n")
    misnamed = said(hosted, "act", "shop", "pay")
    assert (misnamed.code, "DOMAIN.ACTION" in misnamed.err) == (2, True)
    failed = said(hosted, "act", "shop", "Order.pay", "card=tok", "--key", "o")  # its host knows the domain
    assert failed.code == 1
    assert failed.out.startswith("error: ACTION_UNAVAILABLE: ")
    assert said(hosted, "act", "shop", "Order.fill", "cents=5", "--key", "o").code == 0
    assert said(hosted, "explain", "shop", "Order.pay", "--key", "o", "--json").json == {
        "world": "shop",
        "action": "Order.pay",
        "available": True,
        "code": "",
        "message": "",
        "reasons": [],
    }
    would = said(hosted, "act", "shop", "Order.pay", "card=tok", "--key", "o", "--preview", "--json").json
    assert (would["status"], would["asks"][0][0], would["state"]["receipt"]) == ("pending", "charge", None)
    for _ in range(2):
        done = said(hosted, "act", "shop", "Order.pay", "card=tok", "--key", "o", "--id", "once", "--json").json
        assert (done["status"], done["state"]["receipt"]) == ("complete", "5 from tok")
    other = said(hosted, "act", "shop", "Order.pay", "card=x", "--key", "o", "--id", "once")
    assert (other.code, "use a new id" in other.err) == (4, True)


def test_a_world_that_was_never_run_says_itself_what_it_does_not_have(tmp_path: Path) -> None:
    with cli_kit.dev(ORDERS, "--store", tmp_path / "store", "--world", "shop", cwd=tmp_path):
        missing = said(tmp_path / "store", "act", "shop", "Order.cook", "--key", "o")
    assert (missing.code, "nothing here takes an Order.cook" in missing.err) == (1, True)


def test_what_is_not_there_or_wrong(hosted: Path) -> None:
    missing = said(hosted, "act", "shop", "Order.cook", "--key", "o")
    assert (missing.code, "there are Order.fill, Order.pay" in missing.err) == (3, True)
    unnamed = said(hosted, "act", "shop", "Order.pay", "tok", "--key", "o")
    assert "give fields by name" in unnamed.err
    keyless = said(hosted, "act", "shop", "Order.fill", "cents=5")
    assert "a cell for each key: give one" in keyless.err
    assert said(hosted, "explain", "nowhere", "Order.pay").code == 3


def test_a_trace_is_shown_event_by_event(hosted: Path) -> None:
    for words in (("Order.fill", "cents=7", "--id", "fill"), ("Order.pay", "card=tok", "--id", "pay")):
        assert said(hosted, "act", "shop", *words, "--key", "t", "--app", ORDERS).code == 0
    found = said(hosted, "trace", "shop", "--key", "t", "--intent", "pay", "--json").json
    assert (found["world"], found["more"], found["gaps"]) == ("shop", False, [])
    assert [each["type"] for each in found["events"]][:7] == [
        "job:start",
        "context:frozen",
        "core:apply",
        "core:compute",
        "core:apply",
        "effect:dispatch",
        "job:end",
    ]
    assert {(each["domain"], each["key"], each["intent"]) for each in found["events"]} == {("Order", "t", "pay")}
    first = found["events"][0]["height"]
    shown = said(hosted, "trace", "shop", "--domain", "Order", "--key", "t", "--above", 0, "--up-to", first, "--graph")
    lines = shown.out.splitlines()
    assert lines[0].split()[1:] == ["Order['t']", "fill", "job:start", "jobType=StartIntent"]
    assert any(line.split()[1:] == ["patch", "op=set", "path=cents", "->", "7"] for line in lines)
    assert any(" context:frozen now=" in line and line.endswith(" randomSeed=pay") for line in lines)
    none = said(hosted, "trace", "shop", "--intent", "none", "--last", 5)
    assert (none.code, none.out, "begin further below with --above" in none.err) == (0, "", True)
    both = said(hosted, "trace", "shop", "--above", 1, "--last", 5)
    assert (both.code, "give one of them" in both.err) == (2, True)
    above = said(hosted, "trace", "shop", "--above", 10**6)
    assert (above.code, "the journal's head is at height" in above.err) == (2, True)


def test_what_does_not_end_is_said_abandoned_and_traced(hosted: Path) -> None:
    assert said(hosted, "act", "shop", "Order.fill", "cents=7", "--key", "n").code == 0
    late = said(hosted, "act", "shop", "Order.pay", "card=never", "--key", "n", "--id", "hangs", "--timeout", 0.5)
    assert late.code == 6
    [reason] = [each for each in said(hosted, "why", "shop", "--json").json["reasons"] if each["intent"] == "hangs"]
    assert reason["what"].startswith("Order['n']: intent hangs (Order.pay) waits for effect charge ")
    command = shlex.split(reason["command"])[:-2]  # without the store
    assert command == ["worldline", "abandon", "shop", "Order", "hangs", "--key", "n"]
    unasked = said(hosted, *command[1:])
    assert (unasked.code, "pass --yes" in unasked.err) == (2, True)
    assert said(hosted, *command[1:], "--yes", "--json").json["abandoned"] is True
    assert said(hosted, *command[1:], "--yes").code == 3
    events = said(hosted, "trace", "shop", "--intent", "hangs", "--json").json["events"]
    assert [each["type"] for each in events][-2:] == ["intent:abandon", "effect:cancel"]
    assert "hangs" not in said(hosted, "why", "shop").out


def test_data_is_patched(hosted: Path) -> None:
    done = said(hosted, "patch", "shop", "Order", "cents=9", "receipt=paper", "--key", "p", "--json")
    assert (done.code, done.json["state"], done.json["errors"]) == (0, {"cents": 9, "receipt": "paper"}, [])
    gone = said(hosted, "patch", "shop", "Order", "--unset", "receipt", "--key", "p")
    assert (gone.code, gone.out) == (0, "  cents = 9\n")
    wrong = said(hosted, "patch", "shop", "Order", "cents=many", "--key", "p")
    assert (wrong.code, wrong.out.splitlines()[-1]) == (1, "  cents = 9")
    assert "must be number" in wrong.out
    for words, why in (
        ([], "PATH=VALUE, or --unset PATH"),
        (["cents"], "say what a path becomes"),
        (["system.status=idle"], "no handler may write"),
    ):
        refused = said(hosted, "patch", "shop", "Order", *words, "--key", "p")
        assert (refused.code, why in refused.err) == (2, True)
    assert said(hosted, "patch", "shop", "Nothing", "a=1").code == 3


def test_a_world_of_domains_alone_is_proved_without_its_program(hosted: Path) -> None:
    for key in ("p", "q"):
        assert said(hosted, "act", "shop", "Order.fill", "cents=7", "--key", key, "--app", ORDERS).code == 0
    assert said(hosted, "act", "shop", "Order.pay", "card=tok", "--key", "p").code == 0
    proof = said(hosted, "replay", "shop", "--prove", "--json").json
    assert (proof["proved"], proof["unverifiable"], proof["difference"]) == (proof["steps"], [], None)
    assert proof["steps"] >= 5
