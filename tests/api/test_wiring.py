"""How a process is put together, and what is closed of it in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

import worldline as wl
from tests.kits.sums import program
from worldline.api import wiring
from worldline.base import errors
from worldline.client import connection
from worldline.host.feature_list import FEATURES
from worldline.runtime import store_opening


async def test_a_client_has_no_host_and_closes_its_peers() -> None:
    async with wiring.open("memory://", create=True, peers={"far": "memory://"}) as link:
        assert link.host is None
        with pytest.raises(AssertionError, match="no worlds are hosted here"):
            wiring.host_of(link)
    with pytest.raises(errors.Closed, match="peers of this process are closed"):
        await link.peers.find("far")


async def test_a_host_is_that_of_its_connection() -> None:
    async with wiring.open("memory://", host=program(), peers={"far": "memory://"}) as link:
        host = wiring.host_of(link)
        assert host.worlds is not None
        assert (link.peers, link.blobs) == (host.peers, host.blobs(link.id))
    with pytest.raises(errors.Closed):
        await link.peers.find("far")


class Stuck:
    """A host that cannot end."""

    async def close(self) -> None:
        raise errors.StoreUnavailable("the store is out of reach")


async def test_peers_are_closed_also_if_the_host_cannot_end() -> None:
    async with store_opening.store("memory://", features=FEATURES) as store:
        found = await connection.find_universe(store, "default", create=True)
        made = wiring.local_process(store, found, "default", [program()], wl.Settings(), peers={"far": "memory://"})
        process = wiring.LocalProcess(made.link, Stuck())  # type: ignore[arg-type]
        with pytest.raises(errors.StoreUnavailable, match="out of reach"):
            await process.close()
        with pytest.raises(errors.Closed):
            await process.link.peers.find("far")


async def test_a_client_of_an_open_store_leaves_it_open(tmp_path: Path) -> None:
    app = program()
    async with store_opening.store(str(tmp_path), features=FEATURES) as store:
        for create in (True, False):
            async with connection.client(store, "u", wl.Settings(), create=create, programs=[app]) as link:
                assert link.programs == {app.name: app}
        with pytest.raises(errors.NotFound, match="no universe 'v'"):
            async with connection.client(store, "v", wl.Settings()):
                pass
