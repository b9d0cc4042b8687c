from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.layers import scenario
from worldline.base import errors
from worldline.keys import universes as keys
from worldline.layers import universes
from worldline.model import blobs, ids
from worldline.model import world_records as model
from worldline.store import kv


def ident(number: int) -> ids.UniverseId:
    return ids.UniverseId(scenario.ident("universe", number))


def created(store: scenario.Store, number: int, name: str) -> kv.Outcome:
    batch = kv.Batch()
    universes.create(batch, ident(number), name=name, time_us=store.time_us)
    return store.commit(batch)


def found(store: scenario.Store, name: str) -> ids.UniverseId | None:
    return universes.decode(store.read(universes.get(name)).value(0))


def test_a_universe_is_found_by_its_name() -> None:
    store = scenario.Store()
    assert found(store, "main") is None
    assert isinstance(created(store, 1, "main"), kv.Ok)
    assert found(store, "main") == ident(1)
    assert keys.META.get(store.value(keys.meta_key(ident(1)))) == model.UniverseMeta("main", store.time_us)


def test_a_taken_name_and_a_used_id_are_refused() -> None:
    store = scenario.Store()
    created(store, 1, "main")
    before = store.everything()
    taken = created(store, 2, "main")
    assert isinstance(taken, kv.Conflict)
    assert [key for key, _ in taken.found] == [keys.name_key("main")]
    used = created(store, 1, "other")
    assert isinstance(used, kv.Conflict)
    assert [key for key, _ in used.found] == [keys.meta_key(ident(1))]
    assert store.everything() == before


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["a", "b", "a/b", "c c", "ä"])), max_size=12))
def test_names_and_ids_are_given_once(wanted: list[tuple[int, str]]) -> None:
    store = scenario.Store()
    model_names: dict[str, int] = {}
    for number, name in wanted:
        free = name not in model_names and number not in model_names.values()
        assert isinstance(created(store, number, name), kv.Ok) == free
        if free:
            model_names[name] = number
        for each, owner in model_names.items():
            assert found(store, each) == ident(owner)
    assert len(store.everything()) == 2 * len(model_names)


@pytest.mark.parametrize("name", ["", " main", "main/", "a\n", "a" * 129])
def test_bad_names_are_refused_before_anything_is_written(name: str) -> None:
    batch = kv.Batch()
    with pytest.raises(errors.BadInput):
        universes.create(batch, ident(1), name=name, time_us=0)
    assert not batch.puts
    with pytest.raises(errors.BadInput):
        universes.get(name)


def test_a_universe_never_collected_is_at_generation_zero() -> None:
    store = scenario.Store()
    assert universes.decode_generation(store.read(universes.get_generation(ident(1))).value(0)) == 0
    store.set(keys.generation_key(ident(1)), keys.GENERATION.pack(blobs.Generation(7)))
    assert universes.decode_generation(store.read(universes.get_generation(ident(1))).value(0)) == 7
    assert universes.decode_generation(store.read(universes.get_generation(ident(2))).value(0)) == 0


def test_damage_is_noticed() -> None:
    raw = keys.NAME.pack(keys.UniverseName(ident(1)))
    for bad in (scenario.flipped(raw), raw[:-1], keys.GENERATION.pack(blobs.Generation(1)), b""):
        with pytest.raises(errors.DecodeError):
            universes.decode(bad)
        with pytest.raises(errors.DecodeError):
            universes.decode_generation(bad if bad[1:2] != b"\x04" else raw)
