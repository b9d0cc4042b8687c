"""Holds as calls: taken, renewed, released, expired."""

from __future__ import annotations

import pytest

from tests import aging
from tests.layers.scenario import UNIVERSE, Store, now
from worldline.base import errors
from worldline.features.collection import batches as collection_batches
from worldline.features.collection import collection_holds
from worldline.layers import age
from worldline.model import blobs


def standing(store: Store) -> list[blobs.Hold]:
    read = store.read(collection_batches.get_holds(UNIVERSE), age.get(UNIVERSE))
    return collection_batches.decode_holds(UNIVERSE, read.value(0)).standing(store.time_us, age.decode(read.value(1)))


def passes(store: Store, by_us: int) -> None:
    """Time passes by all clocks."""
    store.env.advance_us(by_us)
    now(aging.older(store.engine, UNIVERSE, by_us))


def test_a_hold_is_taken_renewed_and_released() -> None:
    store = Store()
    first = now(collection_holds.take(store.engine, store.env, UNIVERSE, what="backup of main", ttl_ms=1_000))
    second = now(collection_holds.take(store.engine, store.env, UNIVERSE, what="export", ttl_ms=1_000))
    assert [(each.id, each.what) for each in standing(store)] == [(first, "backup of main"), (second, "export")]
    passes(store, 900_000)
    now(collection_holds.renew(store.engine, store.env, UNIVERSE, first, ttl_ms=1_000))
    passes(store, 900_000)
    assert [(each.id, each.what) for each in standing(store)] == [(first, "backup of main")]
    now(collection_holds.release(store.engine, store.env, UNIVERSE, first))
    now(collection_holds.release(store.engine, store.env, UNIVERSE, first))
    assert standing(store) == []


def test_a_hold_that_has_expired_cannot_be_renewed() -> None:
    store = Store()
    taken = now(collection_holds.take(store.engine, store.env, UNIVERSE, what="backup", ttl_ms=1_000))
    store.env.advance_us(1_000_000)
    # one clock alone proves nothing
    now(collection_holds.renew(store.engine, store.env, UNIVERSE, taken, ttl_ms=1_000))
    passes(store, 1_000_000)
    with pytest.raises(errors.NotFound, match="begin again"):
        now(collection_holds.renew(store.engine, store.env, UNIVERSE, taken))
