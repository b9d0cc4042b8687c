"""A standby that missed the last commits becomes the primary: their transaction ids are handed out again."""

from __future__ import annotations

import os
import shutil

from tests.conformance import batches
from tests.servers import postgres as servers
from tests.store.postgres_kit import ENV, Place
from worldline.store import kv, transact

QUEUE = b"queue/"


async def _append(engine: kv.Engine, name: str) -> kv.Stamp:
    batch = batches.once(name)
    batch.append(QUEUE, name.encode())
    [outcome] = await transact.commit(engine, ENV, batch)  # again, after the connections have broken
    assert isinstance(outcome, kv.Ok)
    return outcome.stamps[0]


def _promote_without_the_last(server: servers.Server, kept: str) -> None:
    """Put back what a standby had, and let it end its recovery as a promoted one does: on a new timeline."""
    server.stop()
    shutil.rmtree(server.data)
    shutil.move(str(server.folder / kept), server.data)
    (server.data / "recovery.signal").touch()
    server.start(restore_command="false")


def _keep(server: servers.Server, kept: str) -> None:
    """What a standby has that gets no more from now on."""
    server.stop()
    owner = server.data.stat()
    copy = server.folder / kept
    shutil.copytree(server.data, copy, symlinks=True)
    for path in (copy, *copy.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    server.start()


async def test_stamps_of_lost_commits_never_come_again() -> None:
    server = servers.start()
    place = Place(server)
    try:
        engine = await place.open()
        first = await _append(engine, "kept")
        _keep(server, "standby")
        lost = [await _append(engine, f"lost {number}") for number in range(20)]
        mark = (await engine.read(batches.under(QUEUE))).page(0).stable
        assert mark > lost[-1] > first
        _promote_without_the_last(server, "standby")
        later = await _append(engine, "later")
        page = (await engine.read(batches.under(QUEUE))).page(0)
        assert [value for _, value in page.items] == [b"kept", b"later"]
        assert later > lost[-1], "a stamp that was seen before comes again"
        assert later >= mark, "a scan from a mark of before would not find it"
        assert page.stable > later
    finally:
        await place.aclose()
        server.close()
