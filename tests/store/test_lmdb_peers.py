"""Hints between processes: the datagrams, the sockets' files, and the slow look that finds what was lost."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies

from tests import aio
from tests.store.lmdb_child import Child, create, names
from tests.store.test_lmdb import opened, store_of
from worldline.base import env as envs
from worldline.base import limits
from worldline.store import kv
from worldline.store.lmdb import bell, lmdb_engine
from worldline.store.lmdb import hint_sockets as lmdb_peers

LONG_MS = 60_000
NEVER_MS = 3_600_000


# --- The bell ---


@pytest.mark.parametrize("counter", [True, False])
async def test_a_bell_wakes_a_thread_and_a_loop(counter: bool) -> None:
    one, two = bell.Bell(counter=counter), bell.Bell(counter=counter)
    heard = asyncio.Event()

    def hear() -> None:
        two.hear()
        heard.set()

    def answer() -> None:
        one.hear()
        two.ring()

    asyncio.get_running_loop().add_reader(two.fileno(), hear)
    thread = threading.Thread(target=answer)
    thread.start()
    for _ in range(3):
        one.ring()
    async with asyncio.timeout(10):
        await heard.wait()
    thread.join()
    asyncio.get_running_loop().remove_reader(two.fileno())
    one.close()
    two.close()


# --- What a datagram says ---


@hypothesis.given(
    strategies.integers(0, 2**64 - 1),
    strategies.lists(strategies.binary(min_size=1, max_size=limits.KEY_BYTES_MAX), max_size=20),
)
def test_a_hint_is_read_as_it_was_written(txn: int, keys: list[bytes]) -> None:
    assert lmdb_peers.decode(lmdb_peers.encode(txn, keys)) == lmdb_peers.Heard(txn, keys)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ([b"k" * 8] * limits.HINT_KEYS_MAX, True),
        ([b"k" * 8] * (limits.HINT_KEYS_MAX + 1), False),
        ([b"k" * 480] * 33, True),
        ([b"k" * 480] * 34, False),
    ],
)
def test_a_hint_of_too_many_keys_names_none(keys: list[bytes], named: bool) -> None:
    data = lmdb_peers.encode(7, keys)
    assert len(data) <= limits.HINT_DATAGRAM_BYTES_MAX
    assert lmdb_peers.decode(data) == lmdb_peers.Heard(7, keys if named else None)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"k",
        b"k1234567",
        b"z12345678",
        b"k12345678\x00",
        b"k12345678\x00\x00",
        b"k12345678\x00\x05abcd",
        b"k12345678\x00\x01ab",
    ],
)
def test_bytes_that_are_no_hint_mean_something_was_written(data: bytes) -> None:
    heard = lmdb_peers.decode(data)
    assert isinstance(heard, lmdb_peers.Heard)
    assert heard.keys is None


def test_the_bytes_of_a_hint_are_what_other_processes_expect() -> None:
    assert lmdb_peers.encode(258, [b"ab", b"c"]) == b"k" + bytes([0, 0, 0, 0, 0, 0, 1, 2]) + b"\x00\x02ab\x00\x01c"


# --- Sockets ---


def ears(folder: lmdb_peers.SocketFolder, count: int) -> list[lmdb_peers.Listener]:
    env = envs.FixedEnv(seed=3)
    return [lmdb_peers.Listener(folder, env) for _ in range(count)]


def test_everybody_else_is_told(tmp_path: Path) -> None:
    folder = lmdb_peers.SocketFolder(tmp_path / "hints")
    own, one, two = ears(folder, 3)
    peers = lmdb_peers.PeerListeners(folder)
    peers.add_own(own.name)
    peers.tell(5, [b"a"])
    assert own.hear() == []
    assert one.hear() == two.hear() == [lmdb_peers.Heard(5, [b"a"])]

    one.close()
    peers.tell(6, [b"b"])
    assert two.hear() == [lmdb_peers.Heard(6, [b"b"])]

    # A new one is found because it says hello; until then nobody looks.
    [three] = ears(folder, 1)
    three.greet()
    assert own.hear() == two.hear() == [lmdb_peers.Hello()]
    peers.tell(7, [])
    assert three.hear() == []
    peers.changed()
    peers.tell(8, [])
    assert three.hear() == [lmdb_peers.Heard(8, [])]
    for each in (own, two, three, peers, folder):
        each.close()
    assert names(tmp_path / "hints") == []


def test_who_was_overrun_is_told_everything_next_time(tmp_path: Path) -> None:
    folder = lmdb_peers.SocketFolder(tmp_path / "hints")
    [slow] = ears(folder, 1)
    peers = lmdb_peers.PeerListeners(folder)
    for txn in range(10_000):
        peers.tell(txn, [b"key"])
    heard = slow.hear()
    assert 0 < len(heard) < 10_000, "its queue has an end"
    assert heard[-1] == lmdb_peers.Heard(len(heard) - 1, [b"key"])
    peers.tell(10_000, [b"key"])
    peers.tell(10_001, [b"key"])
    assert slow.hear() == [lmdb_peers.Heard(10_000, None), lmdb_peers.Heard(10_001, [b"key"])]
    for each in (slow, peers, folder):
        each.close()


def test_one_who_never_said_hello_is_found_in_time(tmp_path: Path) -> None:
    folder = lmdb_peers.SocketFolder(tmp_path / "hints")
    peers = lmdb_peers.PeerListeners(folder)
    peers.tell(1, [])
    [silent] = ears(folder, 1)
    for txn in range(limits.HINT_RELIST_GROUPS):
        peers.tell(txn, [])
    assert silent.hear()
    for each in (silent, peers, folder):
        each.close()


def test_a_name_that_is_taken_is_not_taken_over(tmp_path: Path) -> None:
    folder = lmdb_peers.SocketFolder(tmp_path / "hints")
    first, second = (lmdb_peers.Listener(folder, envs.FixedEnv(seed=3)) for _ in range(2))
    assert first.name != second.name
    for each in (first, second, folder):
        each.close()


# --- Engines ---


async def wake_up(engine: lmdb_engine.LmdbEngine, child: Child) -> float:
    """Seconds from the child's commit to the end of a wait here."""
    seen = (await engine.read()).seen
    waiting = asyncio.ensure_future(engine.wait(b"child", seen, LONG_MS))
    await asyncio.sleep(0.01)
    child.go()
    assert await child.line() == "Ok"
    began = time.monotonic()
    async with asyncio.timeout(20):
        assert await waiting
    return time.monotonic() - began


async def opened_child(folder: Path) -> Child:
    """A process that has the store open, and commits a key when told to."""
    child = await Child.start("write_once", folder, "child", 0)
    assert await child.line() == "open"
    return child


@pytest.mark.parametrize("name", ["short", "long" * 40])
@pytest.mark.parametrize("first", ["engine", "child"])
async def test_a_datagram_of_another_process_ends_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, first: str
) -> None:
    monkeypatch.setattr(limits, "HINT_POLL_MS", NEVER_MS)
    folder = tmp_path / name
    children: list[Child] = []
    if first == "child":
        children.append(await opened_child(folder))
    async with opened(folder) as engine:
        if first == "engine":
            await engine.commit(create(b"a"))
            children.append(await opened_child(folder))
        assert await wake_up(engine, children[0]) < 10
        await children[0].end()
        assert len(names(folder / "hints")) == 1


async def test_a_lost_datagram_is_noticed_after_a_while(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        child = await opened_child(tmp_path)
        for name in names(tmp_path / "hints"):
            (tmp_path / "hints" / name).unlink()
        assert await wake_up(engine, child) < limits.HINT_POLL_MS / 1000 + 5
        await child.end()


async def test_without_a_place_for_sockets_the_slow_look_is_left(tmp_path: Path) -> None:
    (tmp_path / "hints").write_text("in the way")
    async with opened(tmp_path) as engine:
        child = await opened_child(tmp_path)
        assert await wake_up(engine, child) < limits.HINT_POLL_MS / 1000 + 5
        await child.end()


async def test_the_folder_of_sockets_may_go_away(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        await engine.commit(create(b"a"))
        shutil.rmtree(tmp_path / "hints")
        engine._store.peers_changed()
        for turn in range(3):
            assert await engine.commit(create(b"b/%d" % turn)) == [kv.Ok()]


async def test_the_slow_look_ends_no_wait_without_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process wrote, and what it was told of, is no surprise."""
    monkeypatch.setattr(limits, "HINT_POLL_MS", 5)
    async with opened(tmp_path) as engine, opened(tmp_path) as other:
        child = await opened_child(tmp_path)
        for turn in range(3):
            await other.commit(create(b"a/%d" % turn))
            await engine.commit(create(b"b/%d" % turn))
            if turn == 1:
                await wake_up(engine, child)
            assert await engine.wait(b"quiet", (await engine.read()).seen, 50) is False
        await child.end()


async def test_a_process_that_wrote_before_tells_one_that_came_later(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        await engine.commit(create(b"a"))
        child = await Child.start("wait_for", tmp_path, "b/", NEVER_MS)
        assert await child.line() == "open"
        await aio.until(lambda: told(engine))
        await engine.commit(create(b"b/1"))
        assert await child.line() == "woken"
        await child.end()


async def told(engine: lmdb_engine.LmdbEngine) -> bool:
    """Whether the engine's store has heard that there is somebody new."""
    peers = store_of(engine)._peers
    assert peers is not None
    return peers._changed


async def test_the_socket_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        await engine.commit(create(b"before"))
        [own] = names(tmp_path / "hints")
        child = await opened_child(tmp_path)
        assert len(names(tmp_path / "hints")) == 2
        await aio.until(lambda: told(engine))
        await child.kill()
        assert len(names(tmp_path / "hints")) == 2
        await engine.commit(create(b"a"))

        async def removed() -> bool:
            return names(tmp_path / "hints") == [own]

        await aio.until(removed)


async def test_opening_removes_the_sockets_of_the_dead(tmp_path: Path) -> None:
    child = await opened_child(tmp_path)
    await child.kill()
    [dead] = names(tmp_path / "hints")
    async with opened(tmp_path) as engine:
        assert dead not in names(tmp_path / "hints")
        assert await engine.commit(create(b"a")) == [kv.Ok()]


async def test_a_datagram_of_nonsense_wakes_and_harms_nobody(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        seen = (await engine.read()).seen
        folder = lmdb_peers.SocketFolder(tmp_path / "hints")
        [own] = names(tmp_path / "hints")
        mouth = lmdb_peers._datagrams()
        folder.send(mouth, own, b"nonsense")
        assert await engine.wait(b"any", seen, LONG_MS)
        assert await engine.commit(create(b"a")) == [kv.Ok()]
        mouth.close()
        folder.close()
