"""Who can write an encrypted store, without its keys, undoes nothing by putting back old sealed values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.features.encryption.encrypted import opened
from worldline.base import errors
from worldline.client.connection import Connection
from worldline.features.abroad import calls as abroad_calls
from worldline.features.encryption.sealed_engine import SealedEngine
from worldline.keys import universes as universe_keys
from worldline.store import kv


async def everything(engine: kv.Engine) -> dict[bytes, bytes]:
    return dict((await engine.read(kv.Range(b"\x00", b"\xff", 1_000_000, 1 << 30))).page(0).items)


def beneath(connection: Connection) -> kv.Engine:
    engine = connection.store.engine
    assert isinstance(engine, SealedEngine)
    return engine.inner


async def write(engine: kv.Engine, changes: dict[bytes, bytes | None]) -> None:
    """As someone who has no keys."""
    there = await everything(engine)
    for key, value in changes.items():
        batch = kv.Batch()
        if key in there:
            batch.expect(key, there[key])
        else:
            batch.absent(key)
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, value)
        await engine.commit(batch)


@pytest.mark.parametrize("also", ["nothing else", "and a change is removed", "all that was changed"])
async def test_grants_that_were_taken_back_stay_so(tmp_path: Path, also: str) -> None:
    async with (
        opened(tmp_path, universe="city", create=True) as city,
        opened(tmp_path, universe="shops", create=True),
        opened(tmp_path, universe="banks", create=True),
    ):
        link = city._connection
        await city.allow("shops")
        engine = beneath(link)
        old = await everything(engine)
        await city.deny("shops")
        await city.allow("banks")
        new = await everything(engine)
        key = universe_keys.grants_key(link.id)
        if also == "all that was changed":
            changes: dict[bytes, bytes | None] = {each: old[each] for each in old if old[each] != new[each]}
        else:
            changes = {key: old[key]}
        if also == "and a change is removed":
            changes[max(each for each in new if each.startswith(universe_keys.grant_log_prefix(link.id)))] = None
        await write(engine, changes)
        assert (await everything(engine))[key] == old[key]
        with pytest.raises(errors.Corrupt, match="one of the two was put back"):
            await city.allowed()
        with pytest.raises(errors.Corrupt, match="one of the two was put back"):
            await abroad_calls.allow(link, "shops", worlds="*", to="*", events="*")
