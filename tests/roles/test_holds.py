"""Holds as calls: taken, renewed, released, expired."""

from __future__ import annotations

import pytest

from tests import aging
from tests.layers.scenario import UNIVERSE, Store, now
from worldline.base import errors
from worldline.layers.upkeep import age, collection
from worldline.model import blob
from worldline.roles.collection import holds


def standing(store: Store) -> list[blob.Hold]:
    read = store.read(collection.get_holds(UNIVERSE), age.get(UNIVERSE))
    return collection.decode_holds(UNIVERSE, read.value(0)).standing(store.time_us, age.decode(read.value(1)))


def passes(store: Store, by_us: int) -> None:
    """Time passes by all clocks."""
    store.env.advance_us(by_us)
    now(aging.older(store.engine, UNIVERSE, by_us))


def test_a_hold_is_taken_renewed_and_released() -> None:
    store = Store()
    first = now(holds.take(store.engine, store.env, UNIVERSE, what="backup of main", ttl_ms=1_000))
    second = now(holds.take(store.engine, store.env, UNIVERSE, what="export", ttl_ms=1_000))
    assert [(each.id, each.what) for each in standing(store)] == [(first, "backup of main"), (second, "export")]
    passes(store, 900_000)
    now(holds.renew(store.engine, store.env, UNIVERSE, first, ttl_ms=1_000))
    passes(store, 900_000)
    assert [(each.id, each.what) for each in standing(store)] == [(first, "backup of main")]
    now(holds.release(store.engine, store.env, UNIVERSE, first))
    now(holds.release(store.engine, store.env, UNIVERSE, first))
    assert standing(store) == []


def test_a_hold_that_has_expired_cannot_be_renewed() -> None:
    store = Store()
    taken = now(holds.take(store.engine, store.env, UNIVERSE, what="backup", ttl_ms=1_000))
    store.env.advance_us(1_000_000)
    now(holds.renew(store.engine, store.env, UNIVERSE, taken, ttl_ms=1_000))  # one clock alone proves nothing
    passes(store, 1_000_000)
    with pytest.raises(errors.NotFound, match="begin again"):
        now(holds.renew(store.engine, store.env, UNIVERSE, taken))
