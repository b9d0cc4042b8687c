"""Peers: other stores by name, opened when they are needed, closed with the process, never left half open."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from worldline.base import env_os, errors
from worldline.host.feature_list import FEATURES
from worldline.runtime import peer_stores, store_opening


class Opening:
    """Stands for `store_opening.open_store`: it takes its time, and counts."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()
        self.may_close = asyncio.Event()
        self.may_close.set()
        self.opened = 0
        self.closed = 0
        self.fails = 0

    async def __call__(self, url: str, **_: Any) -> store_opening.Store:
        await self.may_go_on.wait()
        if self.fails:
            self.fails -= 1
            raise errors.StoreUnavailable(url)
        self.opened += 1
        real = await REAL(url, features=FEATURES)
        opening = self

        class Engine:
            async def close(self) -> None:
                await opening.may_close.wait()
                await real.engine.close()
                opening.closed += 1

        return store_opening.Store(url, Engine(), real.objects, real.env, FEATURES)  # type: ignore[arg-type]


REAL = store_opening.open_store


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Opening:
    opening = Opening()
    monkeypatch.setattr(store_opening, "open_store", opening)
    return opening


async def own() -> store_opening.Store:
    return await REAL("memory://", env=env_os.OsEnv(), features=FEATURES)


async def test_a_store_is_opened_once_and_closed_with_the_process(slow: Opening) -> None:
    found = peer_stores.Peers(await own(), {"far": "memory://"})
    assert slow.opened == 0
    slow.may_go_on.set()
    first, second = await asyncio.gather(found.find("far"), found.find("far"))
    assert first.engine is second.engine
    await found.close()
    assert (slow.opened, slow.closed) == (1, 1)
    with pytest.raises(wl.errors.Closed):
        await found.find("far")


async def test_a_message_that_is_cut_short_leaves_no_store_open(slow: Opening) -> None:
    found = peer_stores.Peers(await own(), {"far": "memory://"})
    finding = asyncio.ensure_future(found.find("far"))
    await asyncio.sleep(0)
    finding.cancel()
    await asyncio.gather(finding, return_exceptions=True)
    closing = asyncio.ensure_future(found.close())
    await asyncio.sleep(0)
    slow.may_go_on.set()
    await closing
    assert (slow.opened, slow.closed) == (1, 1)


async def test_a_store_that_failed_is_opened_anew(slow: Opening) -> None:
    found = peer_stores.Peers(await own(), {"far": "memory://"})
    slow.may_go_on.set()
    slow.fails = 1
    with pytest.raises(errors.StoreUnavailable):
        await found.find("far")
    failed = await found.find("far")
    await found.lost("far", failed)
    again = await found.find("far")
    assert (slow.opened, slow.closed) == (2, 1)
    await found.lost("far", failed)  # another message finds the same out later
    assert (await found.find("far")).engine is again.engine
    await found.close()
    assert (slow.opened, slow.closed) == (2, 2)


async def test_a_store_is_closed_though_the_message_that_found_it_lost_is_cut_short(slow: Opening) -> None:
    found = peer_stores.Peers(await own(), {"far": "memory://"})
    slow.may_go_on.set()
    failed = await found.find("far")
    slow.may_close.clear()
    losing = asyncio.ensure_future(found.lost("far", failed))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    losing.cancel()
    await asyncio.gather(losing, return_exceptions=True)
    slow.may_close.set()
    await found.close()
    assert (slow.opened, slow.closed) == (1, 1)


async def test_the_own_store_is_not_theirs_to_close() -> None:
    store = await own()
    found = peer_stores.Peers(store)
    assert (await found.find("")).engine is store.engine
    with pytest.raises(wl.NotFound, match="its peers are: none"):
        await found.find("far")
    await found.close()
    await store.engine.read()


@pytest.mark.parametrize("given", [{"a b": "memory://"}, {"": "x"}, {"a": 1}, {1: "x"}, {"a": ""}])
async def test_what_are_no_peers(given: Any, tmp_path: Path) -> None:
    with pytest.raises(errors.Error):
        async with wl.open(str(tmp_path / "store"), create=True, peers=given):
            pass


async def test_a_peer_is_plain_or_opened_with_the_keys_of_this_process(tmp_path: Path) -> None:
    ours = wl.ops.AesGcm(keys={"a": b"a" * 32}, current="a")
    theirs = wl.ops.AesGcm(keys={"b": b"b" * 32}, current="b")
    for name, codec in (("own", ours), ("plain", None), ("same", ours), ("other", theirs)):
        await (await store_opening.open_store(str(tmp_path / name), codec=codec, features=FEATURES)).close()
    store = await store_opening.open_store(str(tmp_path / "own"), codec=ours, features=FEATURES)
    found = peer_stores.Peers(store, {name: str(tmp_path / name) for name in ("plain", "same", "other")})
    try:
        for name, engine in (("plain", "LmdbEngine"), ("same", "SealedEngine")):
            assert type((await found.find(name)).engine).__name__ == engine
        with pytest.raises(errors.KeyMissing, match="'b'"):
            await found.find("other")
        keyless = peer_stores.Peers(await own(), {"same": str(tmp_path / "same")})
        with pytest.raises(errors.CodecMismatch):
            await keyless.find("same")
    finally:
        await found.close()
        await store.close()
