"""The cycle: read, step, commit, act, once for some worlds that a worker holds.

One read for all of them -> their steps in the kernel's thread, within budgets -> one batch for each, one commit for all
-> only then act: answer callers, hand out claimed work, publish entries. A world whose batch did not hold, or whose
reading, stepping, building or acting raised anything at all, is reported back as lost; the others are not touched by
it, and their steps are committed in the same cycle.

An input that was acked before another was sent is taken before it, whichever way either comes. So nothing that was
handed over is stepped before the inbox has been read after it came, and to its end; what would have to wait for more
than one page goes through the inbox itself.

A ready hint is deleted by the step that takes the item it was left for, or by a batch of its own if the inbox was
empty when it was read after the hint had been seen. A worker that dies before that leaves the hint for the next holder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.kernel import snapshots as kernel_snapshots
from worldline.keys import inbox as inbox_keys
from worldline.keys import journal as journal_keys
from worldline.layers import blobs as blob_layer
from worldline.layers import commit, leases, ready, snapshots, worlds
from worldline.layers import inbox as inboxes
from worldline.layers import journal as journals
from worldline.layers import work as works
from worldline.model import ids, inbox, payload
from worldline.model.settings import WorkerSettings
from worldline.roles import telemetry, watchdog
from worldline.roles.world import kernel_thread, restore, step_batch
from worldline.roles.world import lease as world_lease
from worldline.roles.world.held_world import Budget, Deferred, Done, Handover, Hosted, Repeated, Superseded, was_handed
from worldline.store import kv, transact

log = logging.getLogger("worldline.worker")

HINTS_MAX = 1_000  # that one commit deletes

Acted = Callable[[Hosted, Done, step_batch.Built], None]


class Clock:
    """The store's time, carried on by our own clock since it was last read: with every heartbeat at the latest."""

    def __init__(self, env: envs.Env) -> None:
        self._env = env
        self._read = (0, 0)

    def set(self, store_us: int) -> None:
        self._read = (store_us, self._env.monotonic_us())

    def now_us(self) -> int:
        store_us, ours_us = self._read
        return store_us + (self._env.monotonic_us() - ours_us)


class Given(msgspec.Struct, eq=False):
    """One world's part of a cycle."""

    hosted: Hosted
    handed: list[Handover]
    hints: Sequence[ready.Hint] = ()  # those that were seen before the inbox was read
    unread: list[tuple[inboxes.Unread, bytes]] = []
    empty: bool = False  # the inbox was read, and there was nothing in it
    whole: bool = False  # the inbox was read to its end
    stepped: bool = False  # its machine may have moved on from what is committed
    late: bool = False  # there was no time left for it
    stuck: bool = False  # something in its inbox cannot be read now
    stepping: bool = False  # its steps are under way in the kernel's thread, or wait for it
    abandoned: bool = False  # whatever its steps come to, they are not committed
    error: BaseException | None = None  # what reading or stepping it has raised; nothing of it is committed
    again: bool = False  # its steps met a conflict and are made again, from what is stored
    began_wall_us: int = 0  # if somebody wants to know


class Worked(msgspec.Struct, eq=False):
    """A world that made steps, and their batch."""

    given: Given
    done: Done
    built: step_batch.Built | None = None
    committed: bool = False


class Lost(msgspec.Struct, frozen=True):
    """A world whose memory is worth nothing any more: its steps were not committed, or not all was done after it."""

    worked: Worked
    why: kv.Conflict | BaseException


class Cycle:
    """What all cycles of one worker share. Several may run at once, over different worlds."""

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        *,
        blobs: blob_layer.Blobs,
        claims: step_batch.Claims,
        settings: WorkerSettings,
        kernel: kernel_thread.KernelThread,
        clock: Clock,
        acted: Acted,
        stuck: Callable[[Hosted], None],
        telemetry: telemetry.Telemetry = telemetry.NOTHING,
    ) -> None:
        self._engine = engine
        self._env = env
        self._blobs = blobs
        self._claims = claims
        self._settings = settings
        self._kernel = kernel
        self._clock = clock
        self._acted = acted
        self._stuck = stuck
        self._telemetry = telemetry
        self._number = 0
        self._under_way: dict[int, tuple[int, Sequence[Given]]] = {}  # since when, by a number of their own

    def take(self, hosted: Hosted) -> Given:
        """What was handed over to a world that takes part in the next cycle."""
        handed = hosted.take_handed(1 if hosted.careful else self._settings.max_inbox_batch)
        given = Given(hosted, handed, tuple(hosted.hints.values()) if hosted.hints else ())
        if self._telemetry.on:
            given.began_wall_us = self._env.wall_us()
        return given

    async def run(self, given: Sequence[Given]) -> list[Lost]:
        """The whole cycle for these worlds, all marked busy. Returns those that are lost.

        If it raises, nothing is known of the worlds that have `stepped`; the others are as they were.
        """
        self._number += 1
        number, began_us = self._number, self._env.monotonic_us()
        self._under_way[number] = began_us, given
        try:
            return await self._run(given, began_us)
        finally:
            del self._under_way[number]

    def under_way(self) -> dict[int, watchdog.UnderWay]:
        """The cycles that have not come back yet."""
        return {
            number: watchdog.UnderWay(began_us, [each.hosted.name or each.hosted.at.world.hex() for each in given])
            for number, (began_us, given) in self._under_way.items()
        }

    def abandon(self, at: ids.Address) -> list[Handover] | None:
        """Have the steps of a world that wait in the kernel's thread come to nothing. Returns what was handed over for
        them, which is certainly not taken; None if no steps of it are there.
        """
        for _, given in self._under_way.values():
            for each in given:
                if each.hosted.at == at and each.stepping:
                    each.abandoned, each.stepped = True, False
                    handed, each.handed = each.handed, []
                    return handed
        return None

    async def _run(self, given: Sequence[Given], began_us: int) -> list[Lost]:
        time_us = await self._read(given)
        await self._clear_hints(given)
        working = [each for each in given if _has_work(each)]
        if not working:
            return []
        for each in working:
            each.stepped = each.stepping = True
        try:
            worked = await self._kernel.run(None, self._step_all, working, time_us)
        finally:
            for each in working:
                each.stepping = False
        worked = [each for each in worked if not each.given.abandoned]
        lost = await self._commit(worked, time_us)
        if self._telemetry.on:
            steps = sum(each.done.steps for each in worked)
            self._telemetry.tell(telemetry.Cycled(len(given), steps, self._env.monotonic_us() - began_us))
            for each_lost in lost:
                self._telemetry.tell(_dropped(each_lost))
        return lost

    # --- Read -------------------------------------------------------------------------------------------------

    async def _read(self, given: Sequence[Given]) -> int:
        """Unread items with their payloads at hand; repeats of client ids answered. Returns the store's time."""
        named = [(each, handover) for each in given for handover in each.handed if handover.client_id is not None]
        if named:
            await self._answer_repeats(named)
        reading: list[Given] = []
        empty: list[Given] = []  # when they were last read; so they are now, if nothing was appended to the store since
        for each in given:
            if each.hosted.unread or (each.handed and not each.hosted.empty_version):
                reading.append(each)
            elif each.handed:
                empty.append(each)
        read = await self._read_inboxes(reading)
        changed: list[Given] = []
        for each in empty:
            if each.hosted.empty_version == read.version:
                each.whole = True
            else:
                changed.append(each)
        if changed:
            read = await self._read_inboxes(changed)
        return read.time_us

    async def _read_inboxes(self, reading: Sequence[Given]) -> kv.Snapshot:
        limit = self._settings.max_inbox_batch
        ranges = [each.hosted.unread_range(limit) for each in reading]
        read = await self._engine.read(*ranges)
        self._clock.set(read.time_us)
        for index, each in enumerate(reading):
            page = read.page(index)
            each.hosted.inbox_read(page, ranges[index], read.version)
            if not page.items:
                each.empty = each.whole = True
                each.hosted.unread = False
                continue
            try:
                await self._read_page(each, page)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one inbox is no other world's concern
                each.error = error
        return read

    async def _read_page(self, each: Given, page: kv.Page) -> None:
        each.unread = await self._load_all(inboxes.decode(page.items))
        each.whole = not page.more and len(each.unread) == len(page.items)
        each.hosted.unread = page.more and len(each.unread) == len(page.items)
        if len(each.unread) < len(page.items):
            each.stuck = True
            self._stuck(each.hosted)
        if not each.whole:
            each.handed = _defer(each.handed)

    async def _load_all(self, items: Sequence[inboxes.Unread]) -> list[tuple[inboxes.Unread, bytes]]:
        """Items with their payloads, up to the first that is out of reach now."""
        loaded: list[tuple[inboxes.Unread, bytes]] = []
        for item in items:
            try:
                loaded.append(await self._load(item))
            except errors.StoreError as error:
                log.warning("an item's payload cannot be read now: %s", error)
                break
        return loaded

    async def _load(self, unread: inboxes.Unread) -> tuple[inboxes.Unread, bytes]:
        """An item with its payload. One whose payload is gone for good is as good as undecodable."""
        carried: payload.Payload | None = getattr(unread.item, "payload", None)
        if carried is None:
            return unread, b""
        if carried.inline is not None:
            return unread, carried.inline
        try:
            return unread, await self._blobs.load(carried)
        except (errors.NotFound, errors.Corrupt) as error:
            return msgspec.structs.replace(unread, item=None, error=f"its payload is not to be had: {error}"), b""

    async def _answer_repeats(self, named: list[tuple[Given, Handover]]) -> None:
        """Client ids that were used before get their first answer again, instead of spoiling the commit of others."""
        for start in range(0, len(named), limits.READ_REQUESTS_MAX):
            part = named[start : start + limits.READ_REQUESTS_MAX]
            read = await self._engine.read(
                *(inboxes.get_seen(each.hosted.at, handover.client_id or "") for each, handover in part)
            )
            for index, (each, handover) in enumerate(part):
                found = read.value(index)
                if found is not None:
                    each.handed.remove(handover)
                    repeat(handover, found)

    async def _clear_hints(self, given: Sequence[Given]) -> None:
        """Hints of worlds whose inboxes were empty. A conflict means that another process has deleted some of them; the
        next search through all hints finds the others.
        """
        batches: list[kv.Batch] = []
        for each in given:
            if each.empty and each.hints:
                batches.append(kv.Batch())
                ready.clear(batches[-1], each.hints)
                each.hosted.drop_hints(each.hints)
        if batches:
            await transact.commit(self._engine, self._env, *batches)

    # --- Step, in the kernel's thread -------------------------------------------------------------------------

    def _step_all(self, given: Sequence[Given], time_us: int) -> list[Worked]:
        """A world whose turn does not come in time is left out. Whatever comes out of the steps of one, the others make
        theirs.
        """
        settings = self._settings
        deadline_us = self._env.monotonic_us() + settings.max_cycle_wall_ms * 1000
        worked: list[Worked] = []
        steps_max, effects_max = settings.max_tick_steps_per_cycle, settings.max_effects_per_cycle
        many, one = Budget(deadline_us, steps_max, effects_max), Budget(deadline_us, 1, effects_max)
        for each in given:
            hosted = each.hosted
            if each.abandoned:
                continue
            if each.error is not None:
                worked.append(Worked(each, Done(hosted.head, hosted.head)))
                continue
            now_us = self._env.monotonic_us()
            if worked and now_us > deadline_us:
                each.stepped, each.late = False, True
                hosted.unread = hosted.unread or bool(each.unread)
            else:
                self._kernel.now(hosted.at, now_us)
                worked.append(self._step(each, one if hosted.careful else many, time_us))
        return worked

    def _step(self, each: Given, budget: Budget, time_us: int) -> Worked:
        hosted = each.hosted
        try:
            return Worked(each, hosted.run(each.unread, each.handed, budget, time_us=time_us, env=self._env))
        except BaseException as error:  # noqa: BLE001 - user code may raise anything, and no signal is meant here
            each.error = error
            return Worked(each, Done(hosted.head, hosted.head))

    # --- Commit -----------------------------------------------------------------------------------------------

    async def _commit(self, worked: list[Worked], time_us: int) -> list[Lost]:
        lost: list[Lost] = []
        try:
            for each in worked:
                if each.given.error is not None:
                    lost.append(Lost(each, each.given.error))
                    continue
                try:
                    if each.done.large or each.done.outgoing:
                        await self._build(each, time_us)
                    else:
                        self._built(each, time_us)
                except Exception as error:  # noqa: BLE001 - a batch that cannot be built is its world's concern alone
                    lost.append(Lost(each, error))
            good = [each for each in worked if each.built is not None]
            outcomes = await self._commit_all(good) if good else []
        except BaseException:
            for each in worked:
                self._give_back(each)
            raise
        for each, outcome in zip(good, outcomes, strict=True):
            if isinstance(outcome, kv.Ok):
                each.committed = True
                try:
                    self._act(each)
                except Exception as error:  # noqa: BLE001 - the steps are durable; a restore makes good what is missing
                    self._give_back(each)
                    lost.append(Lost(each, error))
            else:
                self._give_back(each)
                lost.append(Lost(each, outcome))
        for each_lost in lost:
            if isinstance(each_lost.why, kv.Conflict) and each_lost.why.repeated and each_lost.worked.done.handed:
                await self._settle_overtaken(each_lost.worked)
        return lost

    async def _settle_overtaken(self, worked: Worked) -> None:
        """The commit's answer was lost, and the world has moved on since. It has not been decided by that whether these
        steps are among those it has made; its journal tells. Inputs of steps that are not in it stay to be given back.
        """
        given, done = worked.given, worked.done
        uncertain = errors.StoreUncertain("the answer to the commit was lost, and what became of it cannot be read")
        try:
            if not await _journaled(self._engine, given.hosted.at, done):
                return
        except errors.Error as error:
            uncertain.__cause__ = error
            for handover, _ in done.handed:
                handover.fail(uncertain)
        for handover, applied in done.handed:
            handover.settle(applied)
        given.handed = given.handed[len(done.handed) :]

    async def _build(self, worked: Worked, time_us: int) -> None:
        """The batch of a world whose steps have large payloads, or send something."""
        hosted, done = worked.given.hosted, worked.done
        await step_batch.put_large(hosted, done)
        self._built(worked, time_us, await step_batch.route(self._engine, hosted, done.outgoing))

    def _built(self, worked: Worked, time_us: int, routes: Sequence[step_batch.Route] = ()) -> None:
        hosted, done = worked.given.hosted, worked.done
        hints = _superfluous(worked.given, done) if worked.given.hints else ()
        worked.built = step_batch.build(hosted, done, routes, self._claims, time_us=time_us, hints=hints)

    async def _commit_all(self, worked: list[Worked]) -> list[transact.Certain | Exception]:
        """One outcome for each. A batch that breaks a rule of the store fails alone."""
        batches = [each.built.batch for each in worked if each.built is not None]
        try:
            return [*await transact.commit(self._engine, self._env, *batches)]
        except (errors.StoreError, errors.Lost):
            raise
        except Exception:
            bad = [_refusal(batch) for batch in batches]
            if not any(bad):
                raise
        good = iter(
            await transact.commit(
                self._engine, self._env, *(batch for batch, why in zip(batches, bad, strict=True) if why is None)
            )
        )
        return [next(good) if why is None else why for why in bad]

    def _give_back(self, worked: Worked) -> None:
        if worked.built is not None:
            self._claims.give_back([claimed.work.token for claimed in worked.built.claimed])

    # --- Act --------------------------------------------------------------------------------------------------

    def _act(self, worked: Worked) -> None:
        """The steps are durable: now, and only now, the outside may learn of them."""
        given, done, built = worked.given, worked.done, worked.built
        assert built is not None
        hosted = given.hosted
        hosted.head = done.after
        hosted.head_raw = built.head_raw
        hosted.entries_since += len(done.entries)
        hosted.active_us = self._env.monotonic_us()
        given.stepped = False
        given.handed = given.handed[len(done.handed) :]
        hosted.drop_hints(built.unhinted)
        if done.cut or built.answers_self:
            hosted.unread = True
        if not hosted.unread and not given.handed and not hosted.handed:
            hosted.careful = False
        for handover, applied in done.handed:
            handover.settle(applied)
        if self._telemetry.on:
            self._tell(given, done, built)
        self._acted(hosted, done, built)

    def _tell(self, given: Given, done: Done, built: step_batch.Built) -> None:
        now_us = self._env.monotonic_us()
        waited = [now_us - handover.since_us for handover, _ in done.handed if handover.since_us]
        read = len(done.taken) + sum(1 for each in done.buried if not was_handed(each.unread.stamp))
        waited += [now_us - given.hosted.unread_us] * read
        given.hosted.unread_us = now_us  # whatever is left has been in line since now, as far as we know
        self._telemetry.tell(
            telemetry.Committed(
                given.hosted.at, given.hosted.name, done.entries, done.steps, read, len(done.handed), done.buried,
                list(done.wanted.values()), list(done.closed), done.cancelled, done.outgoing, len(built.claimed),
                waited, self._clock.now_us(), given.began_wall_us, self._env.wall_us(),
            )
        )  # fmt: skip

    # --- After a conflict -------------------------------------------------------------------------------------

    async def start_over(self, given: Given) -> bool:
        """Bring a world back that has lost a race for an input, and nothing else: it stays here, and keeps its lease.

        Its steps are made anew, without that input, by its next cycle. False if it cannot be brought back now.
        """
        hosted = given.hosted
        try:
            material = await restore.gather(self._engine, self._blobs, hosted.at)
            restored = await self._kernel.run(hosted.at, restore.build, material, hosted.program)
        except Exception as error:  # noqa: BLE001 - taking the world anew finds out what is wrong with it
            said = kernel_thread.describe(error)
            log.warning("world %s cannot be brought back now: %s", hosted.at.world.hex(), said)
            return False
        self._kernel.submit(
            hosted.at, hosted.start_over(restored).close
        )  # there: `finally` blocks of its runs end there
        return True

    # --- A cycle of its own -----------------------------------------------------------------------------------

    async def step_and_save(self, hosted: Hosted, handover: Handover, world: worlds.World) -> None:
        """Take one input and make the state after it the baseline, in one commit: a change of program."""
        time_us = self._clock.now_us()
        budget = Budget(2**62, 1, limits.STEP_EFFECTS_MAX)

        def run() -> tuple[Done, list[bytes]]:
            done = hosted.run([], [handover], budget, time_us=time_us, env=self._env)
            return done, kernel_snapshots.save(hosted.machine)

        done, parts = await self._kernel.run(hosted.at, run)
        await step_batch.put_large(hosted, done)
        routes = await step_batch.route(self._engine, hosted, done.outgoing)
        built = step_batch.build(hosted, done, routes, step_batch.Claims(), time_us=time_us)
        root, size = await restore.save_parts(self._blobs, parts)
        taken = snapshots.at_head(done.after, root=root, size=size, program_hash=hosted.program.hash)
        raw = world_lease.new_baseline(built.batch, hosted, taken)
        worlds.change(built.batch, world, program=(hosted.program.name, hosted.program.hash))
        [outcome] = await transact.commit(self._engine, self._env, built.batch)
        if isinstance(outcome, kv.Conflict):
            raise commit.lost(outcome, hosted.lease)
        self._act(Worked(Given(hosted, [handover]), done, built))
        hosted.baseline, hosted.baseline_raw, hosted.entries_since = taken, raw, 0


def _defer(handed: list[Handover]) -> list[Handover]:
    """Send inputs through the inbox, behind what is unread there. Fired timers stay: they are nobody's next input."""
    for handover in handed:
        if not isinstance(handover.item, inbox.TimerFired):
            handover.fail(Deferred("the world's inbox comes first"))
    return [each for each in handed if isinstance(each.item, inbox.TimerFired)]


async def _journaled(engine: kv.Engine, at: ids.Address, done: Done) -> bool:
    """Whether these very steps are in the journal. Raises if that part of it cannot be read any more."""
    head = journals.decode_head((await engine.read(journals.get_head(at))).value(0))
    if head.height < done.after.height:
        return False
    above, up_to = done.before.height, done.after.height
    return await restore.read_entries(engine, at, above=above, up_to=up_to) == done.entries


def _superfluous(given: Given, done: Done) -> Sequence[ready.Hint]:
    """The hints whose items these steps have taken, or others before them. A hint has a greater stamp than its item."""
    if given.whole and not done.cut:
        return given.hints[:HINTS_MAX]
    stamps = [each.stamp for each in done.taken] + [each.unread.stamp for each in done.buried]
    last = max((stamp for stamp in stamps if not was_handed(stamp)), default=b"")
    return [hint for hint in given.hints if hint.stamp <= last][:HINTS_MAX]


def _has_work(given: Given) -> bool:
    return bool(given.handed or given.unread or given.hosted.machine.unfinished or given.error is not None)


def _dropped(lost: Lost) -> telemetry.Dropped:
    hosted, why = lost.worked.given.hosted, lost.why
    if lost.worked.committed and isinstance(why, BaseException):
        return telemetry.Dropped(hosted.at, "act", kernel_thread.describe(why))
    if isinstance(why, errors.CannotStep | MemoryError):
        return telemetry.Dropped(hosted.at, "cannot_step", kernel_thread.describe(why))
    if isinstance(why, errors.StoreError):
        return telemetry.Dropped(hosted.at, "store", str(why))
    if isinstance(why, BaseException):
        unfit = lost.worked.given.error is None
        return telemetry.Dropped(hosted.at, "unfit" if unfit else "step", kernel_thread.describe(why))
    fenced = leases.fenced(why, hosted.lease)
    return telemetry.Dropped(hosted.at, "fenced" if fenced else "conflict", str(commit.lost(why, hosted.lease)))


def is_ours(lost: Lost) -> bool:
    """Whether the world is still ours after a conflict, and where it was: something else that its steps rest on has
    changed, such as work that another process has answered.
    """
    hosted, why = lost.worked.given.hosted, lost.why
    if not isinstance(why, kv.Conflict) or leases.fenced(why, hosted.lease):
        return False
    return not why.at(journal_keys.head_key(hosted.at))[0]


def unsettled(given: Given, why: kv.Conflict) -> list[Handover]:
    """What was handed over for steps that met this conflict, but for those whose own end it tells."""
    kept: list[Handover] = []
    for handover in given.handed:
        if handover.claim is not None and works.lost(why, handover.claim):
            handover.fail(Superseded("somebody else has this work now"))
            continue
        if handover.client_id is not None:
            failed, found = why.at(inbox_keys.seen_key(given.hosted.at, handover.client_id))
            if failed and found is not None:
                repeat(handover, found)
                continue
        kept.append(handover)
    return kept


def repeat(handover: Handover, found: bytes) -> None:
    """Tell a producer that its client id was used before."""
    assert handover.client_id is not None
    try:
        stamp = inboxes.seen_stamp(found, handover.item, client_id=handover.client_id)
    except (errors.IdReused, errors.Corrupt) as error:
        handover.fail(error)
    else:
        handover.fail(Repeated(stamp))


def _refusal(batch: kv.Batch) -> Exception | None:
    try:
        kv.check(batch)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with one batch is its world's concern alone
        return error
    return None
