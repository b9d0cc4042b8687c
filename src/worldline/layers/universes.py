"""Universes: a namespace, a shared CAS, an isolation boundary. A store holds any number of them, by name."""

from __future__ import annotations

from worldline.keys import universes as keys
from worldline.model import blob, ids
from worldline.model import world as model
from worldline.store import kv


def get(name: str) -> kv.Get:
    return kv.Get(keys.name_key(name))


def decode(raw: bytes | None) -> ids.UniverseId | None:
    """The universe a name stands for, or None if there is none of that name."""
    found = keys.NAME.get(raw)
    return None if found is None else ids.UniverseId(found.universe)


def get_meta(universe: ids.UniverseId) -> kv.Get:
    return kv.Get(keys.meta_key(universe))


def name_of(raw: bytes | None) -> str:
    """The name in a universe's record; empty if there is none."""
    found = keys.META.get(raw)
    return "" if found is None else found.name


def create(batch: kv.Batch, universe: ids.UniverseId, *, name: str, time_us: int) -> None:
    """A new universe. Guards: the name is free, and the id was never used."""
    batch.absent(keys.name_key(name))
    batch.put(keys.name_key(name), keys.NAME.pack(keys.UniverseName(universe)))
    batch.absent(keys.meta_key(universe))
    batch.put(keys.meta_key(universe), keys.META.pack(model.UniverseMeta(name, time_us)))


def get_generation(universe: ids.UniverseId) -> kv.Get:
    return kv.Get(keys.generation_key(universe))


def decode_generation(raw: bytes | None) -> int:
    """The garbage-collection generation; a universe never collected is at 0."""
    found: blob.Generation | None = keys.GENERATION.get(raw)
    return 0 if found is None else found.number
