from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.layers import engines, scenario
from worldline.base import env as envs
from worldline.base import errors
from worldline.codec import frame
from worldline.keys import schema
from worldline.layers import store_format as formats
from worldline.model import world_records
from worldline.store import kv

MARKER = bytes.fromhex("b10184d3d8a9820204")


def ensure(store: scenario.Store, *, create: bool) -> world_records.Schema:
    return scenario.now(formats.ensure(store.engine, store.env, create=create))


def marked(*, major: int, minor: int) -> scenario.Store:
    store = scenario.Store()
    store.set(schema.KEY, schema.VALUE.pack(world_records.Schema(major, minor)))
    return store


def test_a_store_is_created_only_when_asked() -> None:
    store = scenario.Store()
    with pytest.raises(errors.StoreMissing, match="create=True"):
        ensure(store, create=False)
    assert store.everything() == {}
    assert ensure(store, create=True) == formats.CURRENT == world_records.Schema(2, 4)
    assert store.everything() == {schema.KEY: MARKER}


@pytest.mark.parametrize("create", [True, False])
def test_a_store_is_opened_again_and_left_as_it_is(create: bool) -> None:
    store = scenario.Store()
    ensure(store, create=True)
    store.set(b"\x15\x02data", b"of the store")
    before = store.everything()
    assert ensure(store, create=create) == formats.CURRENT
    assert store.everything() == before


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize(("major", "minor"), [(1, 2), (1, 3), (2, 5), (2, 99), (99, 0)])
def test_another_format_is_refused_untouched(major: int, minor: int, create: bool) -> None:
    store = marked(major=major, minor=minor)
    before = store.everything()
    with pytest.raises(errors.StoreVersion, match=f"has format {major}.{minor}, this release speaks 2.4"):
        ensure(store, create=create)
    assert store.everything() == before


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("minor", [0, 1, 2, 3])
@pytest.mark.parametrize("lost", [False, True])
def test_an_older_minor_is_opened_and_older_releases_refuse_it_then(
    monkeypatch: pytest.MonkeyPatch, minor: int, create: bool, lost: bool
) -> None:
    store = marked(major=2, minor=minor)
    store.set(b"\x15\x02data", b"of the store")
    unsure = scenario.Unsure(store.engine, ["applied"] if lost else [])
    assert scenario.now(formats.ensure(unsure, store.env, create=create)) == formats.CURRENT
    assert store.everything() == {schema.KEY: MARKER, b"\x15\x02data": b"of the store"}
    monkeypatch.setattr(formats, "CURRENT", world_records.Schema(2, minor))
    with pytest.raises(errors.StoreVersion, match=rf"has format 2\.4, this release speaks 2\.{minor}"):
        ensure(store, create=create)
    assert store.everything() == {schema.KEY: MARKER, b"\x15\x02data": b"of the store"}


def test_of_two_that_raise_the_minor_the_newer_one_stays() -> None:
    store = marked(major=2, minor=1)
    newer = schema.VALUE.pack(world_records.Schema(2, 5))
    batch = scenario.replaced(schema.KEY, schema.VALUE.pack(world_records.Schema(2, 1)), newer)
    slow = engines.Meddled(store.engine, lambda: store.engine.commit(batch), lost=False)
    with pytest.raises(errors.StoreVersion, match=r"has format 2\.5"):
        scenario.now(formats.ensure(slow, store.env, create=True))
    assert store.everything() == {schema.KEY: newer}


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"garbage",
        MARKER[:-1],
        scenario.flipped(MARKER),
        scenario.flipped(MARKER, at=0),
        frame.wrap(2, b"\x82\x01\x00"),
        frame.wrap(1, b"\x82\x00\x00"),
        frame.wrap(1, b"\x82\x01\x20"),
        frame.wrap(1, b"\x83\x01\x00\x00"),
    ],
)
def test_a_marker_that_cannot_be_read_is_refused_untouched(raw: bytes, create: bool) -> None:
    store = scenario.Store()
    store.set(schema.KEY, raw)
    with pytest.raises(errors.StoreVersion, match="marker is not readable") as caught:
        ensure(store, create=create)
    assert isinstance(caught.value.__cause__, errors.DecodeError)
    assert store.everything() == {schema.KEY: raw}


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("key", [b"\x00", b"another program's", schema.KEY + b"\x00", b"\xfe\xff"])
def test_data_without_a_marker_is_refused_untouched(key: bytes, create: bool) -> None:
    store = scenario.Store()
    store.set(key, b"data")
    with pytest.raises(errors.StoreVersion, match="data here but no format marker"):
        ensure(store, create=create)
    assert store.everything() == {key: b"data"}


@pytest.mark.parametrize("lost", [False, True])
def test_of_two_creators_both_find_the_store(lost: bool) -> None:
    store = scenario.Store()
    first = engines.Meddled(store.engine, lambda: formats.ensure(store.engine, store.env, create=True), lost=lost)
    assert scenario.now(formats.ensure(first, store.env, create=True)) == formats.CURRENT
    assert store.everything() == {schema.KEY: MARKER}


@pytest.mark.parametrize("lost", [False, True])
def test_a_creator_that_loses_to_a_newer_release_is_refused(lost: bool) -> None:
    store = scenario.Store()
    newer = schema.VALUE.pack(world_records.Schema(3, 0))
    batch = scenario.replaced(schema.KEY, None, newer)
    slow = engines.Meddled(store.engine, lambda: store.engine.commit(batch), lost=lost)
    with pytest.raises(errors.StoreVersion, match=r"has format 3\.0"):
        scenario.now(formats.ensure(slow, store.env, create=True))
    assert store.everything() == {schema.KEY: newer}


@pytest.mark.parametrize("plan", [["lost"], ["applied"], ["late"], ["lost", "applied"], ["late", "late", "lost"]])
def test_lost_answers_end_in_one_marker(plan: list[str]) -> None:
    store = scenario.Store()
    unsure = scenario.Unsure(store.engine, plan)
    assert scenario.now(formats.ensure(unsure, store.env, create=True)) == formats.CURRENT
    assert store.everything() == {schema.KEY: MARKER}


@pytest.mark.parametrize("name", engines.NAMES)
async def test_many_open_a_new_store_at_once(name: str, tmp_path: Path) -> None:
    env = envs.FixedEnv()
    async with engines.opened(name, tmp_path, env) as engine:
        with pytest.raises(errors.StoreMissing):
            await formats.ensure(engine, env, create=False)
        found = await asyncio.gather(*(formats.ensure(engine, env, create=True) for _ in range(8)))
        assert found == [formats.CURRENT] * 8
        assert await formats.ensure(engine, env, create=False) == formats.CURRENT
        assert (await engine.read(kv.Get(schema.KEY))).value(0) == MARKER
