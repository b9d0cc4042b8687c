"""Acquiring a lease next to one's own heartbeat, and under an id that was taken over."""

from __future__ import annotations

import pytest

from tests.layers import engines, scenario
from worldline.base import errors
from worldline.layers import leases
from worldline.model import ids
from worldline.model.settings import WorkerSettings
from worldline.runtime import death_witness
from worldline.runtime import lease_calls as world_lease

SETTINGS = WorkerSettings()
WORKER = scenario.worker_id(1)


def beat(store: scenario.Store, number: int) -> leases.HeartbeatRecord:
    life = ids.Incarnation(scenario.ident("life", number))
    return scenario.now(world_lease.beat(store.engine, store.env, WORKER, life, SETTINGS))


def test_heartbeat_of_our_own_in_between_costs_one_more_attempt() -> None:
    store = scenario.Store()
    at = store.create_world(0).at
    me = beat(store, 1)

    async def meddle() -> None:
        await world_lease.beat(store.engine, store.env, WORKER, ids.Incarnation(me.sign.incarnation), SETTINGS)

    started_us = store.time_us
    engine = engines.Meddled(store.engine, meddle)
    lease = scenario.now(world_lease.acquire(engine, store.env, at, me, death_witness.DeathWitness(store.env)))
    assert lease.epoch == 1
    assert store.time_us - started_us < scenario.SECOND


def test_process_whose_id_was_taken_over_is_refused_at_once() -> None:
    store = scenario.Store()
    at = store.create_world(0).at
    zombie = beat(store, 1)
    store.env.advance_us(SETTINGS.lease_ttl_ms * 1000)
    restarted = beat(store, 2)
    scenario.now(world_lease.acquire(store.engine, store.env, at, restarted, death_witness.DeathWitness(store.env)))
    before = store.everything()
    with pytest.raises(errors.Exists):
        scenario.now(world_lease.acquire(store.engine, store.env, at, zombie, death_witness.DeathWitness(store.env)))
    assert store.everything() == before
