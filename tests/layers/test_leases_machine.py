"""Leases against a model: several workers, restarts, zombies, stale decisions, clocks that jump, answers that get lost.

The model knows who signed last, who holds what under which epoch, and who is wanted. Every rule says beforehand what
must happen, so a guard that is missing shows as a commit that should have lost. After every rule the whole store is
compared with the model.
"""

from __future__ import annotations

import dataclasses

import hypothesis
from hypothesis import stateful
from hypothesis import strategies as st

from tests.layers import scenario
from tests.layers.scenario import SECOND, Store
from worldline.base import errors
from worldline.keys import leases as keys
from worldline.layers import leases
from worldline.model import ids
from worldline.store import kv, transact

WORLDS = 2
WORKERS = 3
TTL_US = 10 * SECOND


@dataclasses.dataclass
class Process:
    """One life of a worker, as it sees itself. It may be paused at any time: then it simply does nothing."""

    worker: int
    incarnation: ids.Incarnation
    life: leases.HeartbeatRecord
    held: list[leases.Lease] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Look:
    """What a process read of a world, and what the model knew then. It may be acted on much later."""

    process: int
    world: int
    state: leases.LeaseState
    holder_heartbeat: leases.HeartbeatRecord | None
    now_us: int
    version: int
    free: bool
    wanted: int | None


@dataclasses.dataclass
class World:
    epoch: int = 0
    version: int = 0  # counts acquires and releases
    holder: tuple[int, bytes] | None = None
    wanted: int | None = None
    epochs: list[tuple[int, bytes]] = dataclasses.field(default_factory=list)
    writes: list[int] = dataclasses.field(default_factory=list)


class Leases(stateful.RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.unsure = scenario.Unsure(self.store.engine)
        self.worlds = [World() for _ in range(WORLDS)]
        self.signs: dict[int, bytes] = {}  # the life sign of each worker, as stored
        self.processes: list[Process] = []
        self.looks: list[Look] = []
        self.made = 0
        for number in range(WORLDS):
            self.store.create_world(number)

    # --- time ---------------------------------------------------------------------------------------------

    @stateful.rule(by_us=st.sampled_from([SECOND, TTL_US - 1, TTL_US, 3 * TTL_US]))
    def time_passes(self, by_us: int) -> None:
        self.store.env.advance_us(by_us)

    @stateful.rule(by_us=st.sampled_from([-3 * TTL_US, -SECOND, SECOND, 3_600 * SECOND]))
    def clock_jumps(self, by_us: int) -> None:
        self.store.env.jump_wall_us(by_us)

    # --- lives --------------------------------------------------------------------------------------------

    @stateful.rule(worker=st.integers(0, WORKERS - 1))
    def start(self, worker: int) -> None:
        self.made += 1
        incarnation = ids.Incarnation(scenario.ident("life", self.made))
        before = self.stored_life(worker)
        batch = kv.Batch()
        if before is not None and self.is_alive(before, self.store.time_us):
            try:
                self.sign(batch, worker, incarnation, before)
            except errors.Exists:
                return
            raise AssertionError("two processes live under one worker id")
        life = self.sign(batch, worker, incarnation, before)
        self.store.ok(batch)
        self.signs[worker] = life.raw
        self.processes.append(Process(worker, incarnation, life))

    @stateful.precondition(lambda self: self.processes)
    @stateful.rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from(self.processes))
        batch = kv.Batch()
        life = self.sign(batch, process.worker, process.incarnation, process.life)
        if self.signs.get(process.worker) == process.life.raw:
            self.store.ok(batch)
            self.signs[process.worker] = life.raw
            process.life = life
        else:
            self.store.conflict(batch)

    @stateful.precondition(lambda self: self.processes)
    @stateful.rule(data=st.data())
    def say_goodbye(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from(self.processes))
        batch = kv.Batch()
        leases.goodbye(batch, process.life)
        if self.signs.get(process.worker) == process.life.raw:
            self.store.ok(batch)
            del self.signs[process.worker]
        else:
            self.store.conflict(batch)

    # --- leases -------------------------------------------------------------------------------------------

    @stateful.precondition(lambda self: self.processes)
    @stateful.rule(data=st.data(), world=st.integers(0, WORLDS - 1))
    def look(self, data: st.DataObject, world: int) -> None:
        number = data.draw(st.integers(0, len(self.processes) - 1))
        at = scenario.address(world)
        read = self.store.read(*leases.reads(at))
        state = leases.decode(at, read.value(0), read.value(1), read.value(2))
        model = self.worlds[world]
        holder_heartbeat = None if model.holder is None else self.stored_life(model.holder[0])
        free = (
            model.holder is None
            or model.holder[1] == self.processes[number].incarnation
            or holder_heartbeat is None
            or holder_heartbeat.sign.incarnation != model.holder[1]
            or not self.is_alive(holder_heartbeat, read.time_us)
        )
        self.looks.append(Look(number, world, state, holder_heartbeat, read.time_us, model.version, free, model.wanted))

    @stateful.precondition(lambda self: self.looks)
    @stateful.rule(
        data=st.data(),
        proven_dead=st.booleans(),
        fates=st.lists(st.sampled_from(["lost", "applied", "late"]), max_size=2),
    )
    def acquire(self, data: st.DataObject, proven_dead: bool, fates: list[str]) -> None:
        look = data.draw(st.sampled_from(self.looks))
        self.forget_twins(look)
        process, model = self.processes[look.process], self.worlds[look.world]
        batch = kv.Batch()
        try:
            lease = leases.acquire(
                batch,
                look.state,
                me=process.life,
                holder_heartbeat=look.holder_heartbeat,
                now_us=look.now_us,
                proven_dead=proven_dead,
            )
        except errors.Exists:
            allowed = look.wanted in (None, process.worker) and (look.free or proven_dead)
            assert not (allowed and self.is_alive(process.life, look.now_us)), "refused without a reason"
            return
        # One that has lost its memory of a world, and not the lease, may have it again, also if that is assigned.
        is_own = look.state.holder is not None and look.state.holder.incarnation == process.incarnation
        assert is_own or look.wanted in (None, process.worker)
        assert look.free or proven_dead
        assert self.is_alive(process.life, look.now_us)
        self.unsure.plan.extend(fates)
        [outcome] = scenario.now(transact.commit(self.unsure, self.store.env, batch))
        self.unsure.plan.clear()
        if not self.holds_still(look, process, proven_dead):
            assert isinstance(outcome, kv.Conflict)
            return
        assert isinstance(outcome, kv.Ok)
        assert lease.epoch == model.epoch + 1
        model.epoch, model.version = lease.epoch, model.version + 1
        model.holder = (process.worker, process.incarnation)
        model.epochs.append((lease.epoch, process.incarnation))
        process.held.append(lease)

    def forget_twins(self, look: Look) -> None:
        """One process asks for one world once at a time: two equal decisions of its own are one."""
        asked = (look.process, look.world, look.version, look.now_us)
        self.looks = [each for each in self.looks if (each.process, each.world, each.version, each.now_us) != asked]

    def holds_still(self, look: Look, process: Process, proven_dead: bool) -> bool:
        """Whether nothing that an acquire rests on has changed since it was read."""
        if self.worlds[look.world].version != look.version or self.signs.get(process.worker) != process.life.raw:
            return False
        if proven_dead or look.holder_heartbeat is None or look.holder_heartbeat.worker == process.life.worker:
            return True
        return self.signs.get(self.number_of(look.holder_heartbeat.worker)) == look.holder_heartbeat.raw

    @stateful.precondition(lambda self: any(process.held for process in self.processes))
    @stateful.rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """L3: what a former holder writes is never committed."""
        lease = data.draw(st.sampled_from([lease for process in self.processes for lease in process.held]))
        model = self.worlds[self.world_of(lease)]
        self.made += 1
        batch = scenario.replaced(b"\x50" + self.made.to_bytes(4, "big"), None, b"")
        leases.fence(batch, lease)
        if lease.epoch == model.epoch:
            self.store.ok(batch)
            model.writes.append(lease.epoch)
        else:
            assert leases.fenced(self.store.conflict(batch), lease)

    @stateful.precondition(lambda self: any(process.held for process in self.processes))
    @stateful.rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from([process for process in self.processes if process.held]))
        lease = data.draw(st.sampled_from(process.held))
        model = self.worlds[self.world_of(lease)]
        batch = kv.Batch()
        leases.release(batch, lease)
        if lease.epoch == model.epoch and model.holder is not None:
            self.store.ok(batch)
            model.holder = None
            model.version += 1
        else:
            self.store.conflict(batch)

    @stateful.rule(world=st.integers(0, WORLDS - 1), worker=st.none() | st.integers(0, WORKERS - 1))
    def assign(self, world: int, worker: int | None) -> None:
        at = scenario.address(world)
        read = self.store.read(*leases.reads(at))
        state = leases.decode(at, read.value(0), read.value(1), read.value(2))
        batch = kv.Batch()
        if worker is not None:
            leases.assign(batch, state, scenario.worker_id(worker), priority=0, reason="")
        elif self.worlds[world].wanted is not None:
            leases.unassign(batch, state)
        else:
            return
        self.store.ok(batch)
        self.worlds[world].wanted = worker

    # --- what must hold -----------------------------------------------------------------------------------

    @stateful.invariant()
    def store_is_the_model(self) -> None:
        held: dict[bytes, int] = {}
        for number, model in enumerate(self.worlds):
            at = scenario.address(number)
            read = self.store.read(*leases.reads(at))
            state = leases.decode(at, read.value(0), read.value(1), read.value(2))
            assert state.epoch.number == model.epoch
            assert (state.holder is None) == (model.holder is None)
            if state.holder is not None and model.holder is not None:
                assert state.holder.worker == scenario.worker_id(model.holder[0])
                assert state.holder.incarnation == state.epoch.incarnation == model.holder[1]
                held[keys.held_key(ids.WorkerId(state.holder.worker), at)] = model.epoch
        lives = {keys.worker_key(scenario.worker_id(worker)): raw for worker, raw in self.signs.items()}
        stored = dict(self.store.under(*keys.workers()))
        assert {key: keys.HELD.unpack(raw).epoch for key, raw in stored.items() if key not in lives} == held
        assert {key: raw for key, raw in stored.items() if key not in held} == lives

    @stateful.invariant()
    def epochs_have_one_owner_and_only_rise(self) -> None:
        for model in self.worlds:
            assert [epoch for epoch, _ in model.epochs] == list(range(1, model.epoch + 1))
            assert model.writes == sorted(model.writes)

    # --- helpers ------------------------------------------------------------------------------------------

    def sign(
        self, batch: kv.Batch, worker: int, incarnation: ids.Incarnation, before: leases.HeartbeatRecord | None
    ) -> leases.HeartbeatRecord:
        return leases.heartbeat(
            batch,
            scenario.worker_id(worker),
            last=before,
            incarnation=incarnation,
            now_us=self.store.time_us,
            ttl_us=TTL_US,
            capacity=1,
            labels={},
        )

    def stored_life(self, worker: int) -> leases.HeartbeatRecord | None:
        of = scenario.worker_id(worker)
        return leases.decode_heartbeat(of, self.store.read(leases.get_heartbeat(of)).value(0))

    @staticmethod
    def is_alive(life: leases.HeartbeatRecord, now_us: int) -> bool:
        return life.sign.heartbeat_us + TTL_US > now_us

    @staticmethod
    def number_of(worker: ids.WorkerId) -> int:
        return [scenario.worker_id(number) for number in range(WORKERS)].index(worker)

    @staticmethod
    def world_of(lease: leases.Lease) -> int:
        return [scenario.address(number) for number in range(WORLDS)].index(lease.at)


TestLeases = Leases.TestCase
TestLeases.settings = hypothesis.settings(max_examples=100, stateful_step_count=60)
