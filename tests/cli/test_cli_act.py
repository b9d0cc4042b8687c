"""act and explain against a host in another process, without the program."""

from __future__ import annotations

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
        "world": "shop", "action": "Order.pay", "available": True, "code": "", "message": "", "reasons": [],
    }  # fmt: skip
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
    assert (missing.code, "nothing here takes a Order.cook" in missing.err) == (1, True)


def test_what_is_not_there_or_wrong(hosted: Path) -> None:
    missing = said(hosted, "act", "shop", "Order.cook", "--key", "o")
    assert (missing.code, "there are Order.fill, Order.pay" in missing.err) == (3, True)
    unnamed = said(hosted, "act", "shop", "Order.pay", "tok", "--key", "o")
    assert "give fields by name" in unnamed.err
    keyless = said(hosted, "act", "shop", "Order.fill", "cents=5")
    assert "a cell for each key: give one" in keyless.err
    assert said(hosted, "explain", "nowhere", "Order.pay").code == 3


def test_a_world_of_domains_alone_is_proved_without_its_program(hosted: Path) -> None:
    for key in ("p", "q"):
        assert said(hosted, "act", "shop", "Order.fill", "cents=7", "--key", key, "--app", ORDERS).code == 0
    assert said(hosted, "act", "shop", "Order.pay", "card=tok", "--key", "p").code == 0
    proof = said(hosted, "replay", "shop", "--prove", "--json").json
    assert (proof["proved"], proof["unverifiable"], proof["difference"]) == (proof["steps"], [], None)
    assert proof["steps"] >= 5
