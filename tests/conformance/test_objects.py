"""What every object store must do: the reference in memory, a folder, and a bucket on a real S3 server; and each of
them with bodies that are sealed.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.conformance import sealed
from tests.servers import s3
from worldline.base import env_os, errors, limits
from worldline.features.encryption import envelope, sealed_objects
from worldline.store import memory_engine
from worldline.store.objects import folder_objects as objects_folder
from worldline.store.objects import memory_objects as objects_memory
from worldline.store.objects import objects_interface as objects
from worldline.store.objects import s3_objects as objects_s3

KINDS = ["memory", "folder", "s3", "sealed-memory", "sealed-folder", "sealed-s3"]
MIB = 1024 * 1024
NEAR_US = 60_000_000

BAD_NAMES = [
    *("", "/", "//", ".", "..", "../x", "a/..", "a/../b", "a/./b", "/a", "a/", "a//b", "a/b/", "~", "~root/x"),
    *("a\0", "a\0/b", "\0", "a\n", "a\nb", "a b", " a", "a ", "a\tb", "a\\b", "..\\x", "c:\\x", "a:b"),
    *("%2e%2e/x", "a%2fb", "a%00", "A", "a/B", "Abc", "é", "a/ü", "\uff41", "\u202ea", "\ud800", "\u0661", "a\u0300"),
    *("a.b", ".tmp-1-1", "a/.tmp-1-1", "a_b", "a*", "a?", "a#b", "a&b", "a=b", "a;b", "$a", "`a`", "a'b", 'a"b'),
    *("-", "-a", "a/-", "a/-b", "a/b-", "a/b--c", "a-b", "x" * 65, "a/" + "x" * 65, "a/b-" + "x" * 65),
    *("a/b-c-d-e", "/".join("abcdefghi"), "/".join(["x" * 64] * 8), "x" * 100_000, "a/" * 50_000),
]
GOOD_NAMES = ["0", "a", "z9", "a/b", "a/b-c", "a/b-c-d", "x" * 64, "/".join("abcdefgh"), "/".join(["x" * 63] * 8)]


class Place:
    """One fresh, empty store. Every `open` gives another store object on it."""

    def __init__(self, opener: Callable[[], Awaitable[objects.Objects]], *, room: int = 0) -> None:
        self.room = room  # that sealing takes from the largest body
        self._opener = opener
        self._opened: list[objects.Objects] = []

    async def open(self) -> objects.Objects:
        opened = await self._opener()
        self._opened.append(opened)
        return opened

    async def aclose(self) -> None:
        while self._opened:
            await self._opened.pop().close()


_numbers = itertools.count()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    env = env_os.OsEnv()
    kind = request.param.removeprefix("sealed-")
    if kind == "memory":
        shared = objects_memory.MemoryObjects(env)

        async def opener() -> objects.Objects:
            return shared

    elif kind == "folder":

        async def opener() -> objects.Objects:
            return await objects_folder.open(tmp_path / "objects", create=True)

    else:
        server, prefix = s3.shared(), f"conformance/{next(_numbers)}"

        async def opener() -> objects.Objects:
            return await objects_s3.open(server.url(prefix), server.settings(), env)

    if kind == request.param:
        return Place(opener)

    async def sealed_opener() -> objects.Objects:
        return sealed_objects.SealedObjects(await opener(), memory_engine.MemoryEngine(env), sealed.FixedVault())

    return Place(sealed_opener, room=envelope.HEAD_BYTES + sealed.FixedVault.room_bytes)


async def names(store: objects.Objects, prefix: str = "") -> list[str]:
    return [found.name for found in await store.list(prefix)]


@pytest.mark.parametrize("size", [0, 1, 4096, 65_537, 5 * MIB, 5 * MIB + 1])
async def test_a_body_comes_back_as_it_was_put(place: Place, size: int) -> None:
    store, other = await place.open(), await place.open()
    body = random.Random(size).randbytes(size)
    began_us = time.time_ns() // 1000
    await store.put("ab/cd/ef-01", body)
    assert await store.get("ab/cd/ef-01") == body
    assert await other.get("ab/cd/ef-01") == body
    [found] = await other.list("")
    assert (found.name, found.size) == ("ab/cd/ef-01", size)
    assert abs(found.modified_us - began_us) < NEAR_US


@pytest.mark.parametrize("name", GOOD_NAMES)
async def test_a_good_name_is_taken(place: Place, name: str) -> None:
    store = await place.open()
    await store.put(name, b"body")
    assert await store.get(name) == b"body"
    assert await names(store) == [name]
    await store.delete(name)
    assert await names(store) == []


async def test_a_name_is_put_once_whatever_the_body(place: Place) -> None:
    store, other = await place.open(), await place.open()
    for name, first in [("a/1", b"first"), ("a/2", b"")]:
        await store.put(name, first)
        for again in (first, b"second", b"", b"f" * 100_000):
            for taker in (store, other):
                with pytest.raises(errors.Exists, match=name):
                    await taker.put(name, again)
        assert await other.get(name) == first
    assert await names(store) == ["a/1", "a/2"]


async def test_of_racing_puts_exactly_one_wins(place: Place) -> None:
    """Six for each name: the S3 server lets writers of one name wait for each other by the second."""
    stores = [await place.open() for _ in range(3)]
    bodies = [b"%d" % racer * (1 + 3000 * (racer % 2)) for racer in range(6)]

    async def race(name: str) -> None:
        calls = [stores[racer % 3].put(name, body) for racer, body in enumerate(bodies)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        winners = [racer for racer, outcome in enumerate(outcomes) if outcome is None]
        assert len(winners) == 1
        assert all(isinstance(outcome, errors.Exists) for outcome in outcomes if outcome is not None)
        assert await stores[0].get(name) == bodies[winners[0]]

    raced = [f"race/{turn}" for turn in range(6)]
    await asyncio.gather(*(race(name) for name in raced))
    assert await names(stores[1]) == raced


async def test_what_is_not_there_is_not_found(place: Place) -> None:
    store = await place.open()
    for name in ("a", "a/b", "a/b/c"):
        with pytest.raises(errors.NotFound, match=name):
            await store.get(name)
    await store.put("a/b/c", b"x")
    for name in ("a", "a/b", "a/b/d", "a/b/c-d", "a/b/c/d"):
        with pytest.raises(errors.NotFound, match=name):
            await store.get(name)


async def test_deleting_is_idempotent_and_frees_the_name(place: Place) -> None:
    store, other = await place.open(), await place.open()
    await store.delete("a/b/c")
    await store.put("a/b/c", b"1")
    await store.put("a/b/d", b"2")
    await store.delete("a/b")
    await store.delete("a/b/c/d")
    assert await names(other) == ["a/b/c", "a/b/d"]
    for deleter in (other, other, store):
        await deleter.delete("a/b/c")
        assert await names(store) == ["a/b/d"]
        with pytest.raises(errors.NotFound):
            await store.get("a/b/c")
    await store.put("a/b/c", b"3")
    assert await other.get("a/b/c") == b"3"


async def test_racing_deletes_all_succeed(place: Place) -> None:
    stores = [await place.open(), await place.open()]
    await stores[0].put("a/b", b"x")
    await asyncio.gather(*(stores[turn % 2].delete("a/b") for turn in range(10)))
    assert await names(stores[0]) == []


def tree(folder: Path) -> list[Path]:
    """What is there, and beside it, where a name with dots would end up."""
    return sorted([*folder.rglob("*"), *folder.parent.glob("*")])


async def refused(store: objects.Objects, name: str) -> None:
    for call in (store.put(name, b"x"), store.get(name), store.delete(name)):
        with pytest.raises(errors.BadInput):
            await call


async def test_a_bad_name_is_refused_and_nothing_is_written(place: Place, tmp_path: Path) -> None:
    store = await place.open()
    await store.put("keep/me", b"x")
    before = tree(tmp_path)
    for name in BAD_NAMES:
        await refused(store, name)
    assert await names(store) == ["keep/me"]
    assert tree(tmp_path) == before


async def test_random_names_are_refused_or_harmless(place: Place) -> None:
    """A name is taken only if it is written in the one way that cannot be read otherwise."""
    store = await place.open()
    source = random.Random(20)
    pieces = ["a", "0f", "z" * 64, "z" * 65, "-", "/", ".", "..", "%2e", "\0", "A", "é", " ", "\\", "~", "", "\n"]
    taken = 0
    for _ in range(2000):
        name = "".join(source.choices(pieces, k=source.randrange(1, 6)))
        if objects.is_name(name):
            taken += 1
            assert not {*name} - {*"abcdefghijklmnopqrstuvwxyz0123456789-/"}
            assert all(name.split("/"))
            assert len(name) <= limits.OBJECT_NAME_BYTES_MAX
        else:
            await refused(store, name)
    assert taken > 100, "the good ones are among them"
    assert await names(store) == []


LISTED = [
    *("a/0", "a/1", "a/10", "a/2", "a/b-c", "a/b0", "a/bb", "ab/0/x", "ab/0/y", "ab/00", "ab/1/x", "abc/x"),
    *("b/a/a/a/a", "b/a/a/b", "b/b", "c", "cc", "z/" + "f" * 64 + "-" + "0" * 32),
]


async def test_listings_are_in_name_order_and_bounded(place: Place) -> None:
    store = await place.open()
    assert await names(store) == []
    await asyncio.gather(*(store.put(name, name.encode()) for name in random.Random(3).sample(LISTED, len(LISTED))))
    everything = sorted(LISTED)
    assert await names(store) == everything
    prefixes = [
        "",
        "a",
        "a/",
        "a/1",
        "a/b",
        "a/b-",
        "ab",
        "ab/",
        "ab/0",
        "ab/0/",
        "ab/0/x",
        "b/a",
        "c",
        "cc",
        "d",
        "z/f",
    ]
    for prefix, count_max in itertools.product(prefixes, (1, 2, 100)):
        for after in ["", *everything]:
            wanted = [name for name in everything if name.startswith(prefix) and name > after][:count_max]
            found = await store.list(prefix, after=after, count_max=count_max)
            assert [entry.name for entry in found] == wanted, (prefix, after, count_max)
            assert [entry.size for entry in found] == [len(name) for name in wanted]


async def test_a_listing_can_be_walked_page_by_page_while_it_changes(place: Place) -> None:
    store = await place.open()
    made = [f"{hashlib.sha256(b'%d' % number).hexdigest()[:2]}/{number:04d}" for number in range(60)]
    await asyncio.gather(*(store.put(name, b"") for name in made))
    walked: list[str] = []
    after = ""
    while page := await store.list("", after=after, count_max=7):
        walked += [found.name for found in page]
        after = walked[-1]
        await store.delete(after)
    assert walked == sorted(made)
    assert await names(store) == sorted(set(made) - set(walked[6::7]) - {walked[-1]})


@pytest.mark.parametrize(
    ("prefix", "after", "count_max"),
    [
        *[(bad, "", 10) for bad in ("..", "../", "a/../b", "A", "a\0", "a.", "é", "x" * 513)],
        *[("", bad, 10) for bad in ("..", "A", "a\0", "%2e", "x" * 513)],
        *[("", "", bad) for bad in (0, -1, limits.OBJECT_LIST_MAX + 1)],
    ],
)
async def test_a_bad_listing_is_refused(place: Place, prefix: str, after: str, count_max: int) -> None:
    store = await place.open()
    with pytest.raises(errors.BadInput):
        await store.list(prefix, after=after, count_max=count_max)


async def test_a_body_over_the_limit_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await place.open()
    monkeypatch.setattr(limits, "BLOB_BYTES_MAX", 1000)
    await store.put("a/1", b"x" * (1000 - place.room))
    with pytest.raises(errors.TooLarge):
        await store.put("a/2", b"x" * (1001 - place.room))
    assert await names(store) == ["a/1"]


async def test_a_cancelled_put_leaves_all_or_nothing(place: Place) -> None:
    store = await place.open()
    body = b"x" * 200_000
    for turn in range(12):
        call = asyncio.ensure_future(store.put(f"a/{turn:02d}", body))
        for _ in range(turn % 4):
            await asyncio.sleep(0.001)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    await store.put("last", b"")
    for found in await store.list("a/"):
        assert found.size == len(body)
        assert await store.get(found.name) == body


async def test_many_calls_at_once(place: Place) -> None:
    store = await place.open()

    async def one(number: int) -> None:
        name, body = f"{number % 7:02x}/{number:04x}", b"%d" % number * 100
        await store.put(name, body)
        assert await store.get(name) == body
        if number % 2:
            await store.delete(name)

    await asyncio.gather(*(one(number) for number in range(100)))
    assert len(await names(store)) == 50


@pytest.mark.parametrize("place", ["folder", "s3", "sealed-folder", "sealed-s3"], indirect=True)
async def test_a_closed_store_says_so(place: Place) -> None:
    store, other = await place.open(), await place.open()
    await store.put("a/b", b"x")
    await store.close()
    await store.close()
    for call in (store.put("a/c", b""), store.get("a/b"), store.list(""), store.delete("a/b")):
        with pytest.raises(errors.StoreUnavailable, match="closed"):
            await call
    assert await names(other) == ["a/b"]
