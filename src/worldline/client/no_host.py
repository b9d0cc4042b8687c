"""No process runs a world: what a caller that waits for its answer is told, and when.

Nothing is lost meanwhile: the input is durable before anything is waited for, and is processed when a process runs the
world. After `WARN_SECONDS` without a living host the log says so once; after `Settings.host_wait_ms` the wait ends with
`NotHosted`. A host that comes back in between starts both again, so a failover shorter than that goes unnoticed.
"""

from __future__ import annotations

from worldline.base import errors
from worldline.client.connection import Connection
from worldline.codec import printable
from worldline.layers import worlds
from worldline.model import ids
from worldline.model.world_records import Status
from worldline.runtime import world_holders
from worldline.store import urls

log = printable.logger("worldline")

WARN_SECONDS = 2.0


class HostWatch:
    """How long no process has run a world, as one waiting caller sees it. `patient`: that ends no wait."""

    def __init__(self, connection: Connection, at: ids.Address, *, patient: bool = False) -> None:
        self._universe = connection
        self._at = at
        self._limit_us = 0 if patient else connection.settings.host_wait_ms * 1000  # 0 is no limit
        self._since_us = connection.store.env.monotonic_us()
        self._warned = False
        self._next_us = self._since_us + int(WARN_SECONDS * 1_000_000)  # when to look, if nothing ends the wait sooner

    async def look(self) -> None:
        """For a caller to await while nothing comes. `NotHosted` after too long."""
        now_us = self._universe.store.env.monotonic_us()
        too_long = 0 < self._limit_us < now_us - self._since_us
        if not too_long and now_us <= self._next_us:
            return
        self._next_us = now_us + int(WARN_SECONDS * 1_000_000)
        # Looked at even when it is too late: a host that came since the last look must not be reported as missing.
        if await world_holders.is_served(self._universe.store, self._at):
            self._since_us, self._warned = now_us, False
        elif too_long:
            raise errors.NotHosted(await reason(self._universe, self._at))
        elif not self._warned:
            self._warned = True
            log.warning("%s", await reason(self._universe, self._at))


async def reason(connection: Connection, at: ids.Address, *, option: str | None = None) -> str:
    """Return why the world does not answer, and what to do. `option`: what commands for this store need besides."""
    meta = worlds.decode(at, (await connection.store.engine.read(worlds.get(at))).value(0)).meta
    option = urls.option("store", connection.store.url) if option is None else option
    # The status first: a paused world has no host by intention, and only `resume` helps.
    if meta.status is not Status.ACTIVE:
        status = meta.status.name.lower()
        return (
            f"world {meta.name!r} is {status}: what was sent is durable and waits until "
            f"`worldline resume {meta.name}{option}`"
        )
    refused = await world_holders.refusals_of(connection.store, at)
    if refused:
        return (
            f"worker {refused[0].name} cannot run world {meta.name!r} (program {meta.program!r}): {refused[0].why}; "
            f"what was sent is durable and waits until it can be run; see `worldline why {meta.name}{option}`"
        )
    return (
        f"no process hosts world {meta.name!r} (program {meta.program!r}): what was sent is durable and is processed "
        f"when one does; open the store with host=, or type `worldline dev FILE{option}`"
    )
