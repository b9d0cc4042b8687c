"""Personal values and other worlds: messages and files take them along, and none is left of worlds that are deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests.features.erasure.test_erasing import SECRETS, applied, verified
from tests.kits import people, secrets
from tests.kits.kit import Kit
from tests.kits.people import LOUD, SECRET, Joined, Renamed, Shouted
from worldline.base import errors
from worldline.features.copies import import_batches
from worldline.features.deletion.job import WorldRemoval
from worldline.features.erasure import job as erasure_job
from worldline.features.proofs import calls as proof_calls
from worldline.keys import personal_records as sealed_keys
from worldline.layers import personal_records as sealed_layer
from worldline.model import ids
from worldline.model.personal_records import New, PersonalRecord
from worldline.store import kv


async def test_messages_take_their_values_along(kit: Kit) -> None:
    """Each world erases what it has, whoever sent it."""
    app, names = people.program()
    universe = (await kit.process(app)).universe
    near, far = await universe.ensure("near", app), await universe.ensure("far", app)
    said = await near.run(names["tell"]("far", "ada", wl.Personal(SECRET, of="ada")), timeout=30)
    assert said == f"{len(SECRET)} characters"
    await near.erase(key="ada")
    assert (await far.state())["Person"]["ada"]["mail"] == SECRET
    assert (await far.erase(key="ada")).values == 2
    assert await secrets.places(kit, SECRET) == []
    for each in (near, far):
        await verified(each)


async def test_values_of_a_world_that_is_being_imported_stay(memory_kit: Kit) -> None:
    """When what is left of deleted worlds is removed: the world is not there yet, and its values are."""
    universe = (await memory_kit.process()).universe._connection
    engine, env = universe.store.engine, memory_kit.env
    lost, coming = (ids.Address(universe.id, ids.WorldId(bytes([n]) * 16)) for n in (1, 2))
    batch = kv.Batch()
    import_batches.begin(batch, coming, token=bytes(16), source="a file", time_us=0, age_us=1)
    await engine.commit(batch)
    for root in (lost, coming):
        batch = kv.Batch()
        sealed_layer.keep(batch, root, [New(bytes(16), bytes(16), PersonalRecord(bytes(32), SECRET.encode()))])
        await engine.commit(batch)
    assert await erasure_job.sweep(engine, env, universe.id) == 1
    [left] = (await engine.read(kv.Range(*sealed_keys.lineages(universe.id)))).page(0).items
    assert sealed_keys.parse(universe.id, left[0])[0] == coming


@pytest.mark.probe("erasure.lineage-left-over")
async def test_a_deleted_world_leaves_no_personal_values(kit: Kit) -> None:
    """They go with the last world of the lineage: a fork reads what it inherited from a world that is deleted."""
    app, names = people.program()
    universe = (await kit.process(app)).universe
    world = await universe.ensure("w", app)
    other = await universe.ensure("other", app)
    await applied(other, Joined("ada", wl.Personal("other@example.org", of="ada")))
    await applied(world, people.ada())
    fork = await world.fork("fork")
    await applied(fork, Renamed("ada", "Ada"))
    await fork.snapshot()
    await world.delete()
    await WorldRemoval(universe._connection.store.engine, kit.env, universe._connection.id).run()
    person: Any = await fork.state(names["Person"], "ada")
    assert person.mail.value == SECRET
    await verified(fork)
    await fork.delete()
    await WorldRemoval(universe._connection.store.engine, kit.env, universe._connection.id).run()
    assert await secrets.places(kit, SECRET) == []
    assert (await other.state())["Person"]["ada"]["mail"] == "other@example.org"


async def test_an_exported_world_takes_its_values_along(kit: Kit, tmp_path: Path) -> None:
    """Also that some were erased; the copy erases its own. What failed to be imported leaves nothing."""
    app, names = people.program()
    process = await kit.process(app)
    world = await process.universe.ensure("w", app)
    gone = await applied(world, people.ada("old@example.org"))
    await applied(world, people.ada())
    await applied(world, Shouted("ada"))
    await world.erase(height=gone)
    await world.export(tmp_path / "w.world")
    copy = await process.universe.import_world(tmp_path / "w.world", name="copy")
    await copy.resume()
    person: Any = await copy.state(names["Person"], "ada")
    assert (person.mail.value, person.loud[0].value) == (SECRET, LOUD)
    found = await verified(copy)
    assert (found.personal, found.erased) == (5, 2)
    assert (await proof_calls.prove(copy._handle)).holds
    await world.erase(key="ada")
    person = await copy.state(names["Person"], "ada")
    assert person.mail.value == SECRET
    assert (await copy.erase(key="ada")).values == 3
    assert await secrets.places(kit, *SECRETS, "old@example.org") == []
    whole = (tmp_path / "w.world").read_bytes()
    (tmp_path / "cut.world").write_bytes(whole[:-200])
    with pytest.raises(errors.Corrupt):
        await process.universe.import_world(tmp_path / "cut.world", name="cut")
    assert await secrets.places(kit, *SECRETS) == []


async def test_values_do_not_leave_their_universe(memory_kit: Kit) -> None:
    """The sender is told, and nothing is written there."""
    app, names = people.program()
    await (await memory_kit.process(app, universe="far")).universe.ensure("w", app)
    near = await (await memory_kit.process(app)).universe.ensure("near", app)
    with pytest.raises(wl.RunFailed, match="stays in its universe"):
        await near.run(names["tell"]("far/w", "ada", wl.Personal(SECRET, of="ada")), timeout=30)
