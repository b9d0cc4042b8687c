"""`worldline delete` and `worldline universe delete`."""

from __future__ import annotations

from pathlib import Path

from tests.cli import cli_kit
from tests.cli.cli_kit import run
from tests.features.deletion import deleting
from worldline.api.universe_api import Universe
from worldline.model import ids


def test_delete_with_and_without_waiting(store: Path) -> None:
    said = run("delete", "alice", "--yes", "--store", store, "--json").json
    assert (said["status"], said["finished"]) == ("deleted", False)
    for command in ("show", "why", "journal", "verify"):
        shown = run(command, said["id"], "--store", store)
        assert shown.code == 3
        assert "is deleted, 0 keys of it removed so far" in shown.err
    assert "1 deletion of worlds that are not finished" in run("doctor", "--store", store).out
    again = run("delete", said["id"], "--wait", "--store", store, "--json").json
    assert (again["id"], again["finished"]) == (said["id"], True)
    assert "nothing of it is left" in run("show", said["id"], "--store", store).err

    async def left(universe: Universe) -> list[bytes]:
        at = ids.Address(universe._connection.id, ids.WorldId(bytes.fromhex(said["id"])))
        return await deleting.left(universe._connection.store.engine, at)

    assert cli_kit.with_universe(store, left) == []
    assert run("delete", "0" * 32, "--yes", "--store", store).code == 3
    waited = run("delete", "bob", "--yes", "--wait", "--store", store)
    assert waited.out == "bob is deleted; nothing of it is left\n"


def test_universe_delete(store: Path) -> None:
    assert run("universe", "create", "empty", "--store", store).code == 0
    assert run("universe", "delete", "empty", "--store", store).code == 2, "no terminal to ask at"
    said = run("universe", "delete", "empty", "--yes", "--store", store, "--json")
    assert (said.code, said.json) == (0, {"universe": "empty", "deleted": True})
    assert run("universe", "delete", "empty", "--yes", "--store", store).code == 3
    refused = run("universe", "delete", "default", "--yes", "--store", store)
    assert refused.code == 4
    assert "'alice'" in refused.err
    assert "--with-worlds" in refused.err
    assert run("show", "alice", "--store", store).code == 0
    assert run("universe", "delete", "default", "--yes", "--with-worlds", "--store", store).code == 0
    assert run("universe", "list", "-q", "--store", store).out == ""
