"""One garbage collection of a universe, in turns.

::

    look      objects that no record names                                  (`sweep_phase.Orphans`)
    begin     the generation is raised: a mark is under way                 one batch
    mark      everything that is referred to (`mark_phase.py`)                  no batch but renewals
    end       the mark has ended                                            one batch
    condemn   blobs that were not marked, of an older generation            (`sweep_phase.Condemning`)
    delete    what an earlier mark has condemned, a grace ago; orphans      (`sweep_phase.Deleting`)

So a blob goes with the second mark that does not find it, also without a grace: what one mark has read wrong, from a
disk or through memory that lies, costs nothing.

It can be cut off anywhere, and is begun again then: what is condemned stays so, and nothing else is kept. Any number
may be begun at once: the mark of the last one to raise the generation is the one that counts, and the others end with
`Overtaken`. Why no reference is missed is said in `features/collection/batches.py`.

Compaction and deletion of worlds wait for the end of a mark, so a mark is not paced by much. One that cannot be brought
to its end is given up; that of a process which died is given up by the next process that waits for it: at once, if it
had a heartbeat, and else `MARK_MS` after its last renewal.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterable

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits, probes
from worldline.features.collection import batches, mark_barrier, references
from worldline.features.collection.address_set import Marked
from worldline.features.collection.mark_phase import Marker, Plain
from worldline.features.collection.sweep_phase import Condemning, Deleting, Orphans, SweepResult
from worldline.layers import blobs as blob_layer
from worldline.layers import leases
from worldline.model import ids
from worldline.store import kv, transact

GRACE_MS = 3_600_000  # unless told otherwise
# Four renewals in the time after which a mark counts as dead: three may be late or lost.
RENEW_US = batches.MARK_MS * 1000 // 4


class Overtaken(errors.Lost):
    """Another collector has begun, or this one was too slow and its mark was given up."""

    code = "overtaken"


class CollectionReport(msgspec.Struct):
    """What a collection has found and done. `partial`: so many blobs are referred to that only a part was judged, from
    the address `begins` on.
    """

    generation: int = 0
    worlds: int = 0
    marked: int = 0
    partial: bool = False
    begins: bytes = b""
    swept: SweepResult = msgspec.field(default_factory=SweepResult)


class _Phase(enum.Enum):
    LOOK = "look"
    BEGIN = "begin"
    MARK = "mark"
    END = "end"
    CONDEMN = "condemn"
    DELETE = "delete"
    ORPHANS = "orphans"
    OVER = "over"


class CollectionPass:
    """One collection. With `write` off nothing is written: it says what would go. `grace_ms`: how long what nothing
    refers to stays; 0 is safe for what is stored, and not for readers without a lease. `places`: all, but for tests.
    `above`: the first address that is judged; None: where the last collection has left off. `worker`: whose heartbeat
    this process has, so that others need not wait for its mark when it dies; `is_dead`: proof that another has died.
    """

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        blobs: blob_layer.Blobs,
        universe: ids.UniverseId,
        *,
        grace_ms: int = GRACE_MS,
        write: bool = True,
        plain: Plain | None = None,
        marked_max: int = limits.MARKED_MAX,
        places: Iterable[references.ReferenceRange] = references.PLACES,
        above: bytes | None = None,
        worker: ids.WorkerId | None = None,
        is_dead: mark_barrier.IsDead = mark_barrier.never_proven,
    ) -> None:
        if not 0 <= grace_ms <= limits.SETTING_MS_MAX:
            raise errors.BadInput(f"a grace is 0 to {limits.SETTING_MS_MAX} ms, not {grace_ms}")
        self._engine = engine
        self._env = env
        self._blobs = blobs
        self._universe = universe
        self._grace_ms = grace_ms
        self._write = write
        self._plain = plain
        self._marked_max = marked_max
        self._places = places
        self._above = above
        self._worker = worker
        self._is_dead = is_dead
        self._phase = _Phase.LOOK
        self._state: batches.CollectionState | None = None
        self._renewed_us = 0
        self._marker: Marker | None = None
        self._condemning: Condemning | None = None
        self._deleting: Deleting | None = None
        self.report = CollectionReport()
        swept = self.report.swept
        self._orphans = Orphans(engine, blobs.objects, universe, swept, grace_ms=grace_ms)

    @property
    def is_marking(self) -> bool:
        return self._phase in (_Phase.MARK, _Phase.END)

    async def turn(self) -> bool:
        """One part of it. Returns whether that was the last. If it raises, the collection is over, too."""
        try:
            await self._turn()
        # The generation says that a mark is under way: removers wait for it, so an error must end it at once.
        except Exception:
            await self.give_up()
            raise
        return self._phase is _Phase.OVER

    async def give_up(self) -> None:
        """End without a result. If that cannot be said now, others find out in time."""
        # The phase changes first: a second call, from `finally` of the caller, does nothing.
        marking, self._phase = self._write and self.is_marking, _Phase.OVER
        if marking and self._state is not None:
            probes.hit("collection.given-up")
            batch = kv.Batch()
            batches.give_up(batch, self._state)
            # A store that cannot be reached now must not hide the error that ended the collection.
            with contextlib.suppress(errors.StoreError):
                await transact.commit(self._engine, self._env, batch)

    async def _turn(self) -> None:
        match self._phase:
            case _Phase.LOOK:
                if await self._orphans.look():
                    self._phase = _Phase.BEGIN
            case _Phase.BEGIN:
                await self._begin()
            case _Phase.MARK:
                await self._mark()
            case _Phase.END:
                await self._end()
            case _Phase.CONDEMN:
                assert self._condemning is not None
                if await self._condemning.turn():
                    self._phase = _Phase.DELETE
            case _Phase.DELETE:
                assert self._deleting is not None
                if await self._deleting.turn():
                    # A hold keeps everything that is there, also objects without a record.
                    self._phase = _Phase.OVER if self.report.swept.held else _Phase.ORPHANS
            case _Phase.ORPHANS:
                if await self._orphans.delete(write=self._write):
                    self._phase = _Phase.OVER
            case _Phase.OVER:
                pass

    async def _begin(self) -> None:
        state = await (self._raised() if self._write else self._read())
        self._state = state
        above = self._above
        if above is None:
            above = b"" if state.last is None else state.last.above
        marked = Marked(above=above, most=self._marked_max)
        self._marker = Marker(self._engine, self._blobs, self._universe, marked, plain=self._plain, places=self._places)
        # The clock of this process measures when to renew: that needs no read of the store.
        self._renewed_us = self._env.monotonic_us()
        self.report.generation = state.generation.number
        self._phase = _Phase.MARK

    async def _raised(self) -> batches.CollectionState:
        """Raise the generation. One mark at a time: another collector's is waited for."""
        # Made once: a retried batch must begin the same collection, not another one.
        collector = envs.new_id(self._env)

        async def attempt() -> transact.Write[batches.CollectionState]:
            # A mark of another process is awaited inside the attempt: after a conflict, that of the winner is.
            state = await mark_barrier.unmarked(self._engine, self._env, self._universe, self._is_dead)
            worker = self._worker
            read = await self._engine.read(*([] if worker is None else [leases.get_heartbeat(worker)]))
            life = None if worker is None else leases.decode_heartbeat(worker, read.value(0))
            batch = kv.Batch()
            begun = batches.begin(batch, state, collector, time_us=read.time_us, life=life)
            return transact.Write(batch, lambda _: begun)

        return await transact.run(self._engine, self._env, attempt)

    async def _read(self) -> batches.CollectionState:
        read = await self._engine.read(*batches.reads(self._universe))
        return batches.decode(self._universe, read.value(0), read.value(1))

    async def _mark(self) -> None:
        assert self._marker is not None
        if await self._marker.turn():
            self._phase = _Phase.END
        elif self._write and self._env.monotonic_us() - self._renewed_us >= RENEW_US:
            await self._renew()

    async def _renew(self) -> None:
        assert self._state is not None
        time_us = (await self._engine.read()).time_us
        batch = kv.Batch()
        renewed = batches.renew(batch, self._state, time_us=time_us)
        await self._commit(batch)
        # The next batch expects the renewed record; it is kept only after the commit, which may be refused.
        self._state = renewed
        self._renewed_us = self._env.monotonic_us()

    async def _end(self) -> None:
        assert self._state is not None
        assert self._marker is not None
        marked = self._marker.marked
        state = self._state
        if self._write:
            batch = kv.Batch()
            state = batches.end(batch, self._state, time_us=(await self._engine.read()).time_us, above=marked.above)
            await self._commit(batch)
        self._state = state
        report = self.report
        report.worlds, report.marked, report.begins = self._marker.worlds, len(marked), marked.begins
        report.partial = bool(marked.above) or any(marked.begins)
        if not self._write:  # what is there now is what a collection would judge
            state = msgspec.structs.replace(
                state, generation=msgspec.structs.replace(state.generation, number=state.generation.number + 1)
            )
        self._condemning = Condemning(self._engine, self._env, state, marked, report.swept, write=self._write)
        self._deleting = Deleting(
            self._engine,
            self._env,
            self._blobs.objects,
            state,
            marked,
            swept=report.swept,
            grace_ms=self._grace_ms,
            write=self._write,
        )
        self._marker = None
        self._phase = _Phase.CONDEMN

    async def _commit(self, batch: kv.Batch) -> None:
        if not await transact.applied(self._engine, self._env, batch):
            probes.hit("collection.was-overtaken")
            # OVER before the error: `turn` calls `give_up`, which must find no mark of its own to end.
            self._phase = _Phase.OVER
            raise Overtaken("another collector has begun, or this mark was given up because it took too long")


async def collect(
    engine: kv.Engine,
    env: envs.Env,
    blobs: blob_layer.Blobs,
    universe: ids.UniverseId,
    *,
    grace_ms: int = GRACE_MS,
    write: bool = True,
    is_dead: mark_barrier.IsDead = mark_barrier.never_proven,
) -> CollectionReport:
    """A whole collection, at once. Without a grace that takes two marks, of the same addresses. With `write` off: what
    it would do.
    """
    first = await _whole(
        CollectionPass(engine, env, blobs, universe, grace_ms=grace_ms, write=write, is_dead=is_dead), env
    )
    # A second mark is needed only without a grace, and only if the first one has condemned something.
    if grace_ms or not write or not first.swept.unreferenced.count:
        return first
    # The same addresses again: the second mark must judge what the first one has condemned.
    second = await _whole(
        CollectionPass(engine, env, blobs, universe, grace_ms=0, above=first.begins, is_dead=is_dead), env
    )
    second.swept.unreferenced.join(first.swept.unreferenced)
    second.swept.deleted.join(first.swept.deleted)
    second.swept.orphans.join(first.swept.orphans)
    return second


async def _whole(run: CollectionPass, env: envs.Env) -> CollectionReport:
    try:
        while not await run.turn():
            await env.sleep(0)  # other tasks of the event loop get their turns
    finally:
        # A cancelled collection must not leave a mark behind that compaction waits for.
        await run.give_up()
    return run.report
