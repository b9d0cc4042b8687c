"""policy deny, only, drop, list, check."""

from __future__ import annotations

from pathlib import Path

from tests.cli.cli_kit import run


def test_rules_come_and_go(store: Path) -> None:
    here = ["--store", store, "--json"]
    assert "may do everything" in run("policy", "list", "--store", store).err
    said = run("policy", "deny", "effect", "pay*", "--world", "al*", "--program", "shop", "--store", store)
    assert (said.code, said.out) == (0, "rule 1 holds: worlds al* of program shop may not use pay*\n")
    assert (
        run("policy", "deny", "effect", "pay*", "--world", "al*", "--program", "shop", *here).json["rule"]["number"]
        == 1
    )
    said = run("policy", "only", "receive", "--world", "vault", "--peer", "till-*", *here)
    assert (said.json["rule"]["number"], said.json["rule"]["verb"]) == (2, "only")
    [first, second] = run("policy", "list", *here).lines
    assert (first["scope"], first["names"], first["worlds"], first["program"]) == ("effect", "pay*", "al*", "shop")
    assert (second["scope"], second["peers"]) == ("receive", "till-*")
    assert run("policy", "drop", "1", *here).json["dropped"]["number"] == 1
    assert run("policy", "drop", "1", *here).code == 3
    log = run("policy", "list", "--log", *here).lines
    assert [(each["change"], each["added"], each["number"]) for each in log] == [
        (3, False, 1),
        (2, True, 2),
        (1, True, 1),
    ]


def test_what_a_world_may_do_is_said(store: Path) -> None:
    here = ["--store", store, "--json"]
    assert run("policy", "check", "alice", "--effect", "x", *here).json == {
        "world": "alice",
        "allowed": True,
        "why": None,
    }
    run("policy", "deny", "send", "Deposited", "--world", "alice", "--peer", "bob", *here)
    said = run("policy", "check", "alice", "--to", "bob", "--event", "Deposited", *here)
    assert (said.code, said.json["allowed"]) == (1, False)
    assert "rule 1" in said.json["why"]
    assert run("policy", "check", "alice", "--to", "carol", "--event", "Deposited", *here).code == 0
    assert run("policy", "check", "nobody", "--effect", "x", *here).code == 3
    assert run("policy", "check", "alice", "--to", "bob", *here).code == 2
    assert run("policy", "check", "alice", *here).code == 2
    assert run("policy", "deny", "effect", "--peer", "bob", *here).code == 2
