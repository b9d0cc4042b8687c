"""The same commands on a store in PostgreSQL, hosted by another process."""

from __future__ import annotations

from pathlib import Path

import pytest

import worldline as wl
from tests.cli import cli_kit
from tests.cli.cli_kit import SHOP, run, spawn, with_universe
from tests.servers import postgres
from tests.store import postgres_kit
from worldline.base import limits
from worldline.inspect import store_queries
from worldline.store import kv


@pytest.fixture(scope="module")
def url() -> str:
    """A stocked store of this module's own."""
    made = postgres.shared().url(schema=postgres_kit.fresh_schema())
    cli_kit.stock(made)
    return made


def test_looking(url: str, tmp_path: Path) -> None:
    assert run("list", "-q", "--store", url).out.split() == ["carol", "bob", "alice"]
    assert run("state", "alice", "Account", "bob", "--store", url).out == '{"cents":5}\n'
    kinds = [each["kind"] for each in run("why", "alice", "--store", url, "--json").json["reasons"]]
    assert sorted(kinds) == ["dead", "parked", "retrying", "timer", "timer", "wait"]
    assert spawn("list", "-q", cwd=tmp_path, env={"WORLDLINE_STORE": url}).code == 0


def test_checking(url: str) -> None:
    assert run("verify", "--all", "--store", url).code == 0
    proof = run("replay", "alice", "--prove", "--store", url, "--app", SHOP, "--json").json
    assert (proof["holds"], proof["proved"]) == (True, proof["steps"])
    assert run("doctor", "--store", url, "--app", SHOP, "--json").json["findings"] == []


def test_talking_to_a_host(url: str, tmp_path: Path) -> None:
    with cli_kit.dev(SHOP, "--store", url, cwd=tmp_path) as host:
        assert run("run", "bob", "greet", "name=PG", "--store", url).out == "HELLO PG\n"
        assert run("pause", "bob", "--store", url).code == 0
        assert run("send", "bob", "Deposited", "account=x", "cents=1", "--store", url).code == 0
        assert run("resume", "bob", "--store", url).code == 0
        assert run("send", "bob", "Deposited", "account=x", "cents=2", "--wait", "--store", url).code == 0
        assert host.end() == 130
    assert run("state", "bob", "Account", "x", "--store", url).out == '{"cents":3}\n'
    assert run("show", "bob", "--store", url, "--json").json["holder"] is None


def test_every_derived_key_deleted(url: str) -> None:
    deleted = with_universe(url, cli_kit.delete_derived)
    assert deleted >= 7
    assert run("doctor", "--store", url, "--app", SHOP).code == 1
    assert run("doctor", "--repair", "--store", url, "--app", SHOP).code == 0
    assert run("doctor", "--store", url, "--app", SHOP, "--json").json["findings"] == []

    async def count(universe: wl.Universe) -> int:
        ranges = cli_kit.derived(universe._connection.id)
        return sum([await store_queries.count(universe._connection, kv.Range(begin, end)) for begin, end in ranges])

    assert with_universe(url, count) >= 7


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RETRY_MOST_MS", 20)  # as often, in less time
    said = run("list", "--store", "postgresql://nobody@127.0.0.1:1/nothing")
    assert said.code == 5
    assert said.err.count("\n") == 1
