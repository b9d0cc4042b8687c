"""gc: what would go, what goes, and what is refused."""

from __future__ import annotations

from pathlib import Path

import worldline as wl
from tests import aio
from tests.cli.cli_kit import run
from worldline.features.collection import collection_holds
from worldline.layers import cas

DATA = bytes(40_000)


def _put(store: Path, data: bytes = DATA) -> str:
    async def main() -> str:
        async with wl.open(str(store)) as universe:
            return (await universe._connection.blobs.put(data)).hex()

    return aio.run(main())


def _has(store: Path) -> bool:
    async def main() -> bool:
        async with wl.open(str(store)) as universe:
            return await universe._connection.blobs.has(cas.address(DATA))

    return aio.run(main())


def test_a_dry_run_says_what_would_go_and_why(store: Path) -> None:
    of = _put(store)
    said = run("gc", "--dry-run", "--now", "--store", store)
    assert said.code == 0
    assert "would go: nothing refers to them" in said.out
    assert of in said.out
    found = run("gc", "--dry-run", "--store", store, "--json").json
    assert (found["dry_run"], found["unreferenced"]["count"], found["unreferenced"]["bytes"]) == (True, 1, 40_000)
    assert found["unreferenced"]["examples"] == [of]
    assert found["deleted"]["count"] == 0
    assert "would be condemned" in run("gc", "--dry-run", "--store", store).out
    assert _has(store)


def test_garbage_is_condemned_and_deleted_after_its_grace_or_now(store: Path) -> None:
    _put(store)
    said = run("gc", "--store", store)
    assert "1 condemned" in said.out
    assert "wait: condemned, their grace has not passed" in said.out
    assert _has(store)
    assert run("gc", "--grace", "1000", "--store", store, "--json").json["waiting"]["count"] == 1
    said = run("gc", "--now", "--store", store)
    assert "1 of 40000 bytes deleted" in said.out
    assert not _has(store)
    assert run("gc", "--now", "--store", store, "--json").json["deleted"]["count"] == 0


def test_a_hold_is_said(store: Path) -> None:
    _put(store)

    async def main() -> None:
        async with wl.open(str(store)) as universe:
            opened = universe._connection
            await collection_holds.take(opened.store.engine, opened.store.env, opened.id, what="backup to tape")

    aio.run(main())
    said = run("gc", "--now", "--store", store)
    assert "nothing is deleted while a hold stands: backup to tape" in said.out
    assert _has(store)


def test_what_is_not_understood(store: Path, tmp_path: Path) -> None:
    assert run("gc", "--now", "--grace", "3", "--store", store).code == 2
    assert run("gc", "--grace", "-1", "--store", store).code == 2
    assert run("gc", "--store", tmp_path / "none").code == 5
