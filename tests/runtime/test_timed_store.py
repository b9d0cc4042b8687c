"""Calls to the store and the objects are timed and counted where metrics are wanted, and pass untouched elsewhere."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from tests.servers import postgres, s3
from worldline.base import env_os, errors
from worldline.host.feature_list import FEATURES
from worldline.keys import inbox as inbox_keys
from worldline.keys import leases as lease_keys
from worldline.model import ids
from worldline.observe import measures, sinks
from worldline.runtime import facts, store_opening
from worldline.store import kv, memory_engine
from worldline.store.objects import memory_objects as objects_memory

AT = ids.Address(ids.UniverseId(bytes(16)), ids.WorldId(b"w" * 16))
KEY = lease_keys.epoch_key(AT)
_numbers = itertools.count()


def listening(meter: measures.Meter) -> facts.Telling:
    return facts.Telling([("meter", meter.tell)])


def batch(value: bytes, *, instead_of: bytes | None = None) -> kv.Batch:
    made = kv.Batch()
    if instead_of is None:
        made.absent(KEY)
    else:
        made.expect(KEY, instead_of)
    made.put(KEY, value)
    return made


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> str:
    server = s3.shared()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.SECRET_KEY)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    return server.url(f"timed/{next(_numbers)}")


@pytest.mark.parametrize(("engine", "kept"), [("lmdb", "folder"), ("postgres", "s3")])
async def test_every_call_is_counted(engine: str, kept: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    schema = f"timed_{os.getpid()}_{next(_numbers)}"
    url = str(tmp_path / "store") if engine == "lmdb" else postgres.shared().url(schema=schema)
    where = str(tmp_path / "objects") if kept == "folder" else request.getfixturevalue("bucket")
    meter = measures.Meter()
    async with store_opening.store(url, objects=where, features=FEATURES) as bare:
        store = store_opening.told(bare, listening(meter))
        inbox = kv.Batch()
        inbox.absent(b"guard")
        inbox.put(b"guard", b"")
        prefix = inbox_keys.item_prefix(AT)
        inbox.put(inbox_keys.seen_key(AT, "id"), b"seen", stamp=inbox.append(prefix, b"item"))
        outcomes = await store.engine.commit(batch(b"1"), batch(b"2"), inbox)
        assert [type(each) for each in outcomes] == [kv.Ok, kv.Conflict, kv.Ok]
        assert (await store.engine.read(kv.Get(KEY))).value(0) == b"1"
        await store.objects.put("a/b", b"body")
        assert await store.objects.get("a/b") == b"body"
        assert [each.name for each in await store.objects.list("a/")] == ["a/b"]
        await store.objects.delete("a/b")
        with pytest.raises(errors.NotFound):
            await store.objects.get("a/b")
        assert (store_opening.folder_of_objects(store.objects) is not None) == (kept == "folder")
        assert (store_opening.sweep_uploads(store.objects) is not None) == (kept == "folder")
    assert meter.value("worldline_store_commit_seconds", engine) == 1
    assert meter.value("worldline_store_read_seconds", engine) == 1
    assert [meter.value("worldline_store_batches_total", each) for each in ("ok", "conflict", "unknown")] == [2, 1, 0]
    written = {
        labels[0]: value for (name, labels), value in meter.counters.items() if name.endswith("written_bytes_total")
    }
    assert written == {
        "epoch": len(KEY) + 1,
        "other": len(b"guard"),
        "inbox": len(prefix) + 12 + len(b"item"),
        "seen": len(inbox_keys.seen_key(AT, "id")) + len(b"seen") + 12,
    }, "of what was applied"
    calls = [meter.value("worldline_object_seconds", kept, call) for call in ("put", "get", "list", "delete")]
    assert calls == [1, 1, 1, 1], "an object that is missing is no answer of the store's that counts"
    assert [meter.value("worldline_object_bytes_total", kept, call) for call in ("put", "get")] == [4, 4]
    assert not [name for name, _ in meter.counters if name.endswith("errors_total")]


class Down:
    """An engine and objects that cannot be reached."""

    async def read(self, *_: object) -> kv.ReadResult:
        raise errors.StoreUnavailable("down")

    async def commit(self, *_: object) -> list[kv.Outcome]:
        raise errors.StoreFull("full")

    async def get(self, *_: object, **__: object) -> bytes:
        raise errors.StoreUnavailable("down")

    async def wait(self, *_: object) -> bool:
        return False

    async def durability(self) -> kv.Durability:
        return kv.Durability(full=False, settings={})

    async def close(self) -> None:
        pass

    put = list = delete = get


async def test_what_fails_is_counted_and_raised() -> None:
    meter, down = measures.Meter(), Down()
    bare = store_opening.Store("memory://", down, down, env_os.OsEnv(), FEATURES)  # type: ignore[arg-type]
    store = store_opening.told(bare, listening(meter))
    with pytest.raises(errors.StoreUnavailable):
        await store.engine.read()
    with pytest.raises(errors.StoreFull):
        await store.engine.commit(batch(b"1"))
    for call in (store.objects.get, store.objects.list, store.objects.delete):
        with pytest.raises(errors.StoreUnavailable):
            await call("a/b")
    assert meter.value("worldline_store_errors_total", "memory", "read", "store_unavailable") == 1
    assert meter.value("worldline_store_errors_total", "memory", "commit", "store_full") == 1
    with pytest.raises(errors.StoreUnavailable):
        await store.objects.put("a/b", b"body")
    for name in ("get", "list", "delete", "put"):
        assert meter.value("worldline_object_errors_total", "memory", name, "store_unavailable") == 1
    assert meter.histograms == {}, "only what was answered is timed"


async def test_without_metrics_nothing_stands_between() -> None:
    env = env_os.OsEnv()
    store = store_opening.Store(
        "memory://", memory_engine.MemoryEngine(env), objects_memory.MemoryObjects(env), env, FEATURES
    )
    assert store_opening.told(store, facts.NOTHING) is store
    with sinks.observed(sinks.Sinks(log=lambda _: None, replay=lambda _: None), features=()) as logging_only:
        assert logging_only.telemetry.on
        assert store_opening.told(store, logging_only.telemetry) is store
    with sinks.observed(sinks.Sinks(metrics=lambda _: None), features=()) as measuring:
        assert store_opening.told(store, measuring.telemetry).engine is not store.engine


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("worlds", "lmdb"),
        ("./w", "lmdb"),
        ("postgresql://h/d", "postgres"),
        ("postgres://h/d", "postgres"),
        ("memory://", "memory"),
    ],
)
def test_engines_have_names(url: str, name: str) -> None:
    assert store_opening.engine_name(url) == name


def test_a_folder_has_room_and_a_server_says_nothing(tmp_path: Path) -> None:
    room = store_opening.disk_room(str(tmp_path))
    assert room is not None
    assert 0 < room[0] <= room[1]
    assert store_opening.disk_room("postgresql://h/d") is None
    assert store_opening.disk_room(str(tmp_path / "nowhere")) is None
