"""What clients send and read, with the personal values in it: the one place where they are sealed outside of worlds and
effects.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from worldline.base import errors
from worldline.client.world_handle import Handle
from worldline.codec import canonical, digest, sealed_token
from worldline.kernel.personal import personal_value
from worldline.runtime.personal import outside_desk

T = TypeVar("T")


def deliver_sealed(
    world: Handle, write: Callable[[], bytes], deliver: Callable[[bytes], Awaitable[T]], *, id: str | None
) -> Awaitable[T]:
    """Keep the personal values in what is written apart, and deliver the rest. `id`: under which it is known when it is
    sent again. What is refused leaves nothing.
    """
    # A process that never had a personal value cannot send one: its inputs are written once, at no desk.
    if not personal_value.use.seen:
        return deliver(write())
    looking = outside_desk.LookingDesk()
    data = outside_desk.written_at(looking, write)
    if not looking.has_sealed:
        return deliver(data)
    return _sealed(world, write, deliver, id)


async def _sealed(
    world: Handle, write: Callable[[], bytes], deliver: Callable[[bytes], Awaitable[T]], id: str | None
) -> T:
    # Written a second time, with real tokens: only what has personal values reads the store before it is delivered.
    store = world.connection.store
    at = await world.address()
    root = await outside_desk.root_of(store.engine, at)
    # The same id gives the same tokens, so what is sent again has the same bytes and is known as a repeat.
    seed = store.env.random_bytes(16) if id is None else digest.hash_parts(b"personal", at.world, id.encode())
    desk = outside_desk.CollectingDesk(store.env, seed)
    data = desk.at(write)
    # Kept before they are delivered: a world must never hold a token whose value is not stored.
    replaced = await outside_desk.keep(store.engine, store.env, root, desk.new)
    if replaced is None:
        raise errors.IdReused(id or "")
    for before, after in replaced.items():
        data = data.replace(before, after)
    try:
        return await deliver(data)
    # Only where it is certain that nothing was delivered. After an uncertain commit the values stay, for the input may.
    except (errors.BadInput, errors.Closed, errors.Overloaded, errors.NotFound):
        await outside_desk.drop(store.engine, store.env, root, desk.new)
        raise


async def as_it_is(data: bytes) -> bytes:
    """For what is delivered later."""
    return data


async def opened(world: Handle, data: bytes, load: Callable[[], T]) -> T:
    """Have something read that is of these bytes, with the personal values in it."""
    found = sealed_token.find(data)  # a search of bytes: without tokens nothing of the store is read
    if not found:
        return load()
    store = world.connection.store
    values, _ = await outside_desk.read(
        store.engine, await outside_desk.root_of(store.engine, await world.address()), found
    )
    return outside_desk.CollectingDesk(store.env, b"", values).at(load)


async def plain(world: Handle, data: bytes) -> Any:
    """A stored value as plain data: `Erased.TEXT` where a value was erased."""
    found = sealed_token.find(data)
    if not found:
        return canonical.decode(data)
    store = world.connection.store
    values, _ = await outside_desk.read(
        store.engine, await outside_desk.root_of(store.engine, await world.address()), found
    )
    return outside_desk.revealed(canonical.decode(data), values)


async def revealed(world: Handle, value: T) -> T:
    """A record of plain data with its personal values in place, or `Erased.TEXT`."""
    found = [sealed_token.parse(each) for each in dict.fromkeys(outside_desk.tokens_in(value))]
    if not found:
        return value
    store = world.connection.store
    values, _ = await outside_desk.read(
        store.engine, await outside_desk.root_of(store.engine, await world.address()), found
    )
    shown: T = outside_desk.revealed(value, values)
    return shown
