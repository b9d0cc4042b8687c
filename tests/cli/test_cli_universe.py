"""universe list, create, quota, settings; allow, deny, allowed."""

from __future__ import annotations

from pathlib import Path

import worldline as wl
from tests import aio
from tests.cli.cli_kit import run


async def make(store: Path, name: str) -> str:
    async with wl.open(str(store), universe=name, create=True) as universe:
        return universe.id


def test_allowing_and_denying(store: Path) -> None:
    made = aio.run(make(store, "city"))
    here = ["--store", store, "--json"]
    assert "no other universe may send here" in run("universe", "allowed", "--store", store).err
    said = run("universe", "allow", "city", "--to", "al*", "--event", "Deposited", *here)
    assert (said.code, said.json["changed"]) == (0, True)
    assert run("universe", "allow", "city", "--to", "al*", "--event", "Deposited", *here).json["changed"] is False
    assert run("universe", "allow", made, *here).code == 0
    [first, second] = run("universe", "allowed", *here).lines
    assert (first["universe"], first["worlds"], first["to"], first["events"]) == ("city", "*", "al*", "Deposited")
    assert (second["universe"], second["universe_id"]) == (made, made)
    assert run("universe", "deny", "city", "--to", "nothing", *here).code == 1
    assert len(run("universe", "deny", "city", *here).json["taken"]) == 2
    assert run("universe", "allowed", *here).lines == []
    assert "city" in run("universe", "allowed", "--log", "--store", store).out
    log = run("universe", "allowed", "--log", *here).lines
    assert [(each["change"], each["allowed"]) for each in log] == [(3, False), (3, False), (2, True), (1, True)]


def test_what_cannot_be_allowed(store: Path) -> None:
    here = ["--store", store, "--json"]
    assert run("universe", "allow", "nowhere", *here).code == 3
    assert run("universe", "allow", "default", *here).code == 2
    assert run("universe", "allow", "billing:default", *here).code == 3
    assert run("universe", "allow", "f" * 32, "--to", "a*b", *here).code == 2
    assert run("universe", "allowed", *here).lines == []


def test_a_project_names_its_peers(store: Path, tmp_path: Path) -> None:
    far = tmp_path / "far"
    made = aio.run(make(far, "city"))
    (tmp_path / "worldline.toml").write_text(f'store = "{store}"\npeers = {{ far = "far" }}\n')
    assert run("universe", "allow", "far:city", cwd=tmp_path).code == 0
    [found] = run("universe", "allowed", "--json", cwd=tmp_path).lines
    assert (found["universe"], found["universe_id"]) == ("far:city", made)


def test_listing_making_and_bounding(store: Path) -> None:
    here = ["--store", store, "--json"]
    said = run("universe", "create", "city", *here)
    assert (said.code, said.json["created"]) == (0, True)
    assert run("universe", "create", "city", *here).code == 1
    assert run("universe", "create", "", *here).code == 2
    assert [each["name"] for each in run("universe", "list", *here).lines] == ["city", "default"]
    city = [*here, "--universe", "city"]
    said = run("universe", "quota", "--worlds", "2", "--bytes", "20G", "--effects", "none", *city)
    assert said.json["changed"] is True
    assert said.json["quota"] == {"worlds": 2, "bytes": 20 * 1024**3, "effects": None, "pins": None}
    assert run("universe", "quota", "--bytes", "none", *city).json["quota"]["bytes"] is None
    assert run("universe", "quota", *city).json["changed"] is False
    log = run("universe", "quota", "--log", *city).lines
    assert [(each["change"], each["worlds"], each["bytes"]) for each in log] == [(2, 2, None), (1, 2, 20 * 1024**3)]
    table = run("universe", "list", "--store", store).out
    assert "worlds 0 of 2" in table
    counted = run("universe", "list", "--count", *here).lines
    assert all(each["bytes"] > 0 and each["counted"] for each in counted)


def test_a_quota_that_is_used_up(store: Path) -> None:
    here = ["--store", store, "--json"]
    assert run("universe", "quota", "--bytes", "10", "--count", *here).json["exceeded"] == ["bytes"]
    refused = run("send", "alice", "Deposited", "cents=1", *here)
    assert (refused.code, refused.error["code"]) == (4, "quota_exceeded")
    assert "its quota is 10" in refused.error["message"]
    assert "over its quota of bytes" in run("universe", "quota", "--store", store).out
    assert any(each["kind"] == "quota" for each in run("why", "alice", *here).json["reasons"])
    assert run("universe", "quota", "--bytes", "none", *here).json["exceeded"] == []
    assert run("send", "alice", "Deposited", "cents=1", *here).code == 0


def test_what_is_no_quota(store: Path) -> None:
    here = ["--store", store, "--json"]
    for wrong in ("-1", "lots", "1.5", "1P", ""):
        assert run("universe", "quota", "--worlds", wrong, *here).code == 2, wrong
    assert run("universe", "quota", "--worlds", str(2**63), *here).code == 2
    assert run("universe", "quota", "--universe", "nowhere", *here).code == 3
    assert run("universe", "quota", "--log", *here).lines == []


def test_settings_of_a_universe(store: Path) -> None:
    """Chosen once, every command goes by them; `worldline settings` shows them with their origin."""
    here = ["--store", store]
    assert "nothing is stored with universe 'default'" in run("universe", "settings", *here).err
    said = run("universe", "settings", "pressure.inbox_items_max=1", "pressure.sample_ms=0", *here, "--json")
    assert [(each["name"], each["value"], each["by"]) for each in said.lines] == [
        ("pressure.inbox_items_max", 1, "operator"),
        ("pressure.sample_ms", 0, "operator"),
    ]
    rows = run("settings", "pressure", "--changed", *here, "--json").lines
    assert [(each["name"], each["value"], each["origin"]) for each in rows] == [
        ("pressure.inbox_items_max", 1, "universe 'default'"),
        ("pressure.sample_ms", 0, "universe 'default'"),
    ]
    send = ["send", "alice", "Anything", "--data", "{}", *here]
    assert run(*send).code == 0
    full = run(*send)
    assert (full.code, "is full" in full.err) == (4, True)
    assert run("universe", "settings", "pressure.inbox_items_max=default", *here, "--json").code == 0
    assert run(*send).code == 0


def test_settings_that_are_none_of_a_universe(store: Path) -> None:
    for words, why in (
        (["pressure.inbox_item_max=3"], "did you mean 'pressure.inbox_items_max'"),
        (["worker.scan_ms=3"], "worker.scan_ms is a setting of each process"),
        (["pressure.sample_ms"], "use NAME=VALUE"),
        (["pressure.sample_ms=x"], "pressure.sample_ms is 'x'; use a whole number"),
        (["worker.snapshots_kept=1", "worker.snapshots_kept=2"], "given twice"),
    ):
        said = run("universe", "settings", *words, "--store", store)
        assert (said.code, why in said.err, said.err.count("\n")) == (2, True, 1), said.err
