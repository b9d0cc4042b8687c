"""The other stores that a process sends messages to, by name: opened when the first message goes there.

A peer is never created from here, and one that cannot be opened now is tried again with the next message: the effect
that carries the message waits longer each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from worldline.base import errors
from worldline.kernel.authoring import message_calls
from worldline.layers import blobs as blob_layer
from worldline.model import ids
from worldline.runtime import store_opening
from worldline.runtime.universe_admission import Admission
from worldline.store import kv

OWN = ""

Opening = Callable[[str], Coroutine[Any, Any, store_opening.Store]]


class PeerUniverse(msgspec.Struct, frozen=True):
    """A store that messages can be brought to: the engine, where the large values of a universe are, and what decides
    whether a universe takes more from outside.
    """

    engine: kv.Engine
    blobs: blob_layer.Of
    admissions: tuple[Admission, ...]


class Peers:
    """The stores of one process: its own, and its peers. `opening`: how a store is opened by its URL."""

    def __init__(
        self, own: store_opening.Store, urls: Mapping[str, str] | None = None, *, opening: Opening | None = None
    ) -> None:
        self._own = own
        self._opening = opening or self._open_store
        self._urls = {message_calls.check_peer(name): url for name, url in (urls or {}).items()}
        self._opened: dict[str, asyncio.Task[store_opening.Store]] = {}
        self._closing: list[asyncio.Task[None]] = []
        self._closed = False

    def names(self) -> list[str]:
        return list(self._urls)

    async def find(self, name: str) -> PeerUniverse:
        """`NotFound` if there is no store of this name; `StoreError` if it cannot be opened now."""
        store = self._own if name == OWN else await self._open(name)
        return PeerUniverse(store.engine, lambda universe: blobs_of(store, universe), store.admissions)

    async def _open(self, name: str) -> store_opening.Store:
        if name not in self._urls:
            known = ", ".join(self._urls) or "none"
            raise errors.NotFound(f"this host has no peer {name!r}; its peers are: {known}")
        if self._closed:
            raise errors.Closed("the peers of this process are closed")
        task = self._opened.get(name)
        if task is None:
            task = self._opened[name] = asyncio.get_running_loop().create_task(self._opening(self._urls[name]))
        try:
            return await asyncio.shield(task)  # a message that is cut short does not leave it half open
        except errors.Error:
            # Another message may have begun to open it again meanwhile.
            if self._opened.get(name) is task:
                del self._opened[name]
            raise

    async def _open_store(self, url: str) -> store_opening.Store:
        """A peer that is encrypted is opened with the keys of this process; it may be plain."""
        try:
            return await store_opening.open_store(
                url, create=False, env=self._own.env, codec=self._own.codec, features=self._own.features
            )
        except errors.CodecMismatch:
            if self._own.codec is None:
                raise
            return await store_opening.open_store(url, create=False, env=self._own.env, features=self._own.features)

    async def lost(self, name: str, place: PeerUniverse) -> None:
        """A store has failed permanently in this process: open it again the next time.

        Several messages find that out at once. A store that was opened since then is left alone.
        """
        task = self._opened.get(name)
        if task is not None and _result(task) is not None and task.result().engine is place.engine:
            del self._opened[name]
            await self._close(task)

    async def close(self) -> None:
        self._closed = True
        while self._opened:
            await self._close(self._opened.popitem()[1])
        if self._closing:
            await asyncio.wait(self._closing)

    async def _close(self, task: asyncio.Task[store_opening.Store]) -> None:
        """Close a store, when it is open. It is closed also if the caller is cancelled meanwhile."""
        closing = asyncio.get_running_loop().create_task(_close_opened(task))
        self._closing.append(closing)
        closing.add_done_callback(self._closing.remove)
        await asyncio.shield(closing)


async def _close_opened(task: asyncio.Task[store_opening.Store]) -> None:
    # `wait` raises nothing: an opening that has failed is no error of the close.
    await asyncio.wait([task])
    store = _result(task)
    if store is not None:
        await store.close()


def _result(task: asyncio.Task[store_opening.Store]) -> store_opening.Store | None:
    """The store that a task has opened, if it has."""
    return task.result() if task.done() and not task.cancelled() and task.exception() is None else None


def blobs_of(store: store_opening.Store, universe: ids.UniverseId) -> blob_layer.Blobs:
    """Where the large values of a universe of a store are."""
    return blob_layer.Blobs(
        store.engine, store.objects, store.env, universe, cache=store.cache, in_store_bytes_max=store.in_store_bytes_max
    )


def check_urls(urls: Mapping[str, str] | None) -> dict[str, str]:
    """Peers as they were given: the URL of a store by name."""
    if urls is None:
        return {}
    found: dict[str, str] = {}
    items: list[tuple[Any, Any]] = list(urls.items())
    for name, url in items:
        if not isinstance(name, str) or not isinstance(url, str):
            kinds = f"{type(name).__name__}: {type(url).__name__}"  # no more of it: a URL may have a password in it
            raise errors.BadInput(f"peers= takes URLs of stores by name, not {kinds}")
        store_opening.scheme(url)
        found[message_calls.check_peer(name)] = url
    return found
