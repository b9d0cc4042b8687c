"""A universe, from outside: its worlds, found, made and listed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from typing import Literal

from worldline.api.world_api import World
from worldline.base import env as envs
from worldline.base import errors
from worldline.client import dead_letters, listing, setting_calls, world_changes, world_names
from worldline.client.connection import Connection
from worldline.client.dead_letters import DeadLetter
from worldline.client.setting_calls import UniverseSetting
from worldline.client.world_handle import Handle
from worldline.client.world_names import Ref
from worldline.features.abroad import calls as abroad_calls
from worldline.features.abroad.calls import Allowed, AllowedChange
from worldline.features.collection import calls as collection_calls
from worldline.features.collection.calls import Collected
from worldline.features.copies import calls as copy_calls
from worldline.features.forks import calls as forks
from worldline.features.policy import calls as policy_calls
from worldline.features.policy.calls import PolicyChange, Rule, RuleScope, RuleVerb
from worldline.features.quotas import calls as quota_calls
from worldline.features.quotas.calls import QuotaChange
from worldline.features.quotas.quota_use import QuotaUse
from worldline.kernel import state_rows as kernel_snapshots
from worldline.kernel.authoring.calls import Seconds
from worldline.kernel.authoring.program import Program
from worldline.kernel.machine import Machine
from worldline.layers import cas, universes, worlds
from worldline.layers.history import saved_state
from worldline.model import ids
from worldline.model import journal as journals
from worldline.model import snapshots as snapshot_model
from worldline.model.world_records import Status, WorldMeta
from worldline.runtime import universe_admission
from worldline.runtime.universe_admission import NewWorld
from worldline.store import kv, transact, urls


class Universe:
    """List the worlds of one namespace."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def name(self) -> str:
        """Its name in the store."""
        return self._connection.name

    @property
    def id(self) -> str:
        """Its id, which no other universe of any store has."""
        return self._connection.id.hex()

    @property
    def metrics_port(self) -> int | None:
        """The port where Prometheus finds metrics, if they are offered."""
        return self._connection.metrics_port

    def __repr__(self) -> str:
        return f"Universe({self.name!r}, store={urls.shown(self._connection.store.url)!r})"

    def world(self, name: str, /) -> World:
        """Return a handle of a world by its name, without reading anything. Whether it exists shows when it is used."""
        return World(self._connection, name)

    async def ensure(self, name: str, program: Program, /, *, labels: dict[str, str] | None = None) -> World:
        """Return the world of this name, made now if there is none. One of another program is refused."""
        try:
            # Making comes first: looking first would let two callers both find nothing, and one of them fail.
            return await self.create(name, program, labels=labels)
        except errors.Exists:  # it is there: whether it is what the caller wants is looked at below
            world = World(self._connection, name, program=program.name)
            meta = await world.describe()
            # A world keeps its program for life, so this one cannot become the caller's.
            if meta.program != program.name:
                raise errors.Exists(
                    f"world {name!r} is one of program {meta.program!r}, not {program.name!r}"
                ) from None
            self._connection.knows(program)
            return world

    async def create(
        self, name: str, program: Program, /, *, labels: dict[str, str] | None = None, seed: str | None = None
    ) -> World:
        """Make a new world. `Exists` if the name is in use.

        `seed`: it begins with the state of this world, "template" or "template@HEIGHT", as a live fork of it.
        """
        _check_given(name, program)  # the two are easily exchanged, and the error of a later line would not say so
        made = World(self._connection, name, program=program.name)  # checks the name, before anything is made
        if seed is not None:
            self._connection.knows(program)
            await forks.create_from_seed(self._connection, name, seed, program=program.name, labels=labels)
            return made
        world_changes.check_labels(labels)
        # Outside of the attempt: the first state depends on the program alone, and is made once.
        machine = Machine(program)
        state = saved_state.whole(machine.state, kernel_snapshots.rows_of(machine))
        store, universe = self._connection.store, self._connection.id

        async def attempt() -> transact.NothingToWrite[bool] | transact.Write[bool]:
            generation = universes.get_generation(universe)
            read = await store.engine.read(
                worlds.get_name(universe, name),
                generation,
                universes.get_meta(universe),
                *universe_admission.reads(store.admissions, universe),
            )
            if read.value(0) is not None:
                return transact.NothingToWrite(False)
            batch = kv.Batch()
            # The universe may be deleted at this moment, and nothing may be made in it then.
            universes.expect_there(batch, universe, read.value(2))
            await universe_admission.admit(
                store.admissions, NewWorld(universe), batch, read, first=3, engine=store.engine, env=store.env
            )
            number = universes.decode_generation(read.value(1))
            # A collection that begins now would not know of these blobs: the batch conflicts, and they are put under
            # the next.
            universes.expect_generation(batch, universe, read.value(1))
            for each in state.blobs:  # in the same batch: a world is never there without its first state
                cas.put_inline(batch, universe, each, generation=number)
            baseline = snapshot_model.StateSnapshot(
                0, 0, journals.GENESIS.chain, state.root, state.header.size, program.hash, read.time_us
            )
            at = ids.Address(universe, ids.WorldId(envs.new_id(store.env)))
            worlds.create(
                batch,
                at,
                name=name,
                program=program.name,
                program_hash=program.hash,
                labels=labels or {},
                baseline=baseline,
                time_us=read.time_us,
            )
            return transact.Write(batch, lambda _: True)

        if not await transact.run(store.engine, store.env, attempt):
            raise errors.Exists(f"there is a world named {name!r} already")
        self._connection.knows(program)
        return made

    async def import_world(
        self,
        path: str | os.PathLike[str],
        /,
        *,
        name: str = "",
        effects: Literal["drop", "reissue"] = "drop",
        live: bool | None = None,
        bytes_max: int | None = None,
    ) -> World:
        """Make a new world of a file that `World.export` has written. All of the file is checked first.

        It begins archived, so that two copies never both act: `await world.resume()` starts it. `name`: another
        than that in the file. `effects`: what becomes of those that were open. `live`: whether its effects leave it;
        unless given, they do if those of the exported world did. `bytes_max`: how much the file may unpack to; unless
        given, what one of its size does (`CopyTooLarge`).
        """
        made = await copy_calls.import_world(
            self._connection, path, name=name, effects=effects, live=live, bytes_max=bytes_max
        )
        return self.world(made.name)

    async def worlds(
        self,
        *,
        status: Status | None = None,
        labels: Mapping[str, str] | None = None,
        program: str = "",
        prefix: str = "",
    ) -> AsyncIterator[WorldMeta]:
        """List the worlds that match all of this, the newest first. A label with an empty value matches any value."""
        wanted = listing.wanted(status=status, labels=labels, program=program, prefix=prefix)
        async for _, meta in listing.worlds_of(self._connection, wanted):
            yield meta

    async def refs(self) -> AsyncIterator[Ref]:
        """List every name of a world, in order, and where it points. Any number of names may point to a world."""
        async for each in world_names.refs(self._connection):
            yield each

    async def set_ref(self, name: str, world: str, /) -> None:
        """Make a name point to the world of another name. One that points elsewhere is moved."""
        at = await Handle(self._connection, world).address()
        with contextlib.suppress(errors.Exists):  # it points there already
            await world_changes.point(self._connection, name, at)

    async def delete_ref(self, name: str, /) -> None:
        """Take a name away; the world stays. `NotFound` if there is none, `Closed` for a world's own: rename it."""
        await world_changes.free(self._connection, name)

    async def rename(self, world: str, name: str, /) -> World:
        """Give a world another name of its own, and free the old one. `Exists` if the name is in use."""
        await world_changes.rename(self._connection, await Handle(self._connection, world).address(), name)
        return World(self._connection, name)

    async def allow(self, sender: str, /, *, worlds: str = "*", to: str = "*", events: str = "*") -> bool:
        """Let worlds of another universe send messages here. False if that was allowed already.

        `sender`: a universe of this store by name, one of a peer as `peer:universe`, or one by its id. `worlds` of it,
        `to` worlds here, `events` by schema or as `inbox:NAME`: each a name, or the beginning of one with * behind it.
        """
        return await abroad_calls.allow(self._connection, sender, worlds=worlds, to=to, events=events)

    async def deny(
        self, sender: str, /, *, worlds: str | None = None, to: str | None = None, events: str | None = None
    ) -> list[Allowed]:
        """Take back what was allowed to a universe: all of it, or what was allowed with these very patterns. What is in
        an inbox already stays there. Returns what was taken back.
        """
        return await abroad_calls.deny(self._connection, sender, worlds=worlds, to=to, events=events)

    async def allowed(self) -> list[Allowed]:
        """List what other universes may send here."""
        return await abroad_calls.allowed(self._connection)

    async def allowed_changes(self) -> list[AllowedChange]:
        """List what was allowed and denied when, the newest first."""
        return await abroad_calls.changes(self._connection)

    async def add_rule(
        self,
        verb: RuleVerb,
        scope: RuleScope,
        /,
        *,
        worlds: str = "*",
        program: str = "*",
        peers: str = "*",
        names: str = "*",
    ) -> Rule:
        """Say what worlds of this universe may not do: `"deny"` takes something away, `"only"` names all that they may.

        `"send"` and `"receive"` are about messages (`peers`: receivers, senders; `names`: schemas, or `inbox:NAME`),
        `"effect"` about effects. Each is a name, or the beginning of one with `*` behind. When this returns, it holds
        for every step that is stored from then on. What is refused raises `wl.Undeliverable` (`not_allowed`) or
        `wl.errors.PolicyDenied` where it was asked for.
        """
        return await policy_calls.add_rule(
            self._connection, verb, scope, worlds=worlds, program=program, peers=peers, names=names
        )

    async def drop_rule(self, number: int, /) -> Rule:
        """Take a rule away. `NotFound` if there is none of this number."""
        return await policy_calls.drop_rule(self._connection, number)

    async def rules(self) -> list[Rule]:
        """List what worlds of this universe may not do, in the order in which it was said."""
        return await policy_calls.rules(self._connection)

    async def why_not(
        self, world: str, /, *, to: str | None = None, event: str = "", effect: str | None = None
    ) -> str | None:
        """Say which rule is against what a world would do: send an event, or use an effect. None if it may."""
        return await policy_calls.why_not(self._connection, world, to=to, event=event, effect=effect)

    async def policy_changes(self) -> list[PolicyChange]:
        """List which rules were added and taken away when, the newest first."""
        return await policy_calls.changes(self._connection)

    async def quota(self) -> QuotaUse:
        """Say what the universe has, and what it may have."""
        return await quota_calls.use(self._connection.store, self._connection.id)

    async def set_quota(
        self,
        *,
        worlds: int | None = quota_calls.KEEP,
        bytes: int | None = quota_calls.KEEP,
        effects: int | None = quota_calls.KEEP,
        pins: int | None = quota_calls.KEEP,
    ) -> bool:
        """Change what the universe may have; None takes a bound away. False if it was so already.

        `worlds` that are not deleted, `bytes` stored, open `effects`, forks that pin a snapshot of the world they come
        from (`pins`). Beyond it, `QuotaExceeded` refuses what comes from outside and asks for more; never receipts,
        timers, or messages between worlds of the universe.
        """
        return await quota_calls.change(self._connection, worlds=worlds, bytes=bytes, effects=effects, pins=pins)

    async def quota_changes(self) -> list[QuotaChange]:
        """List what the quota was from when on, the newest first."""
        return await quota_calls.changes(self._connection)

    async def stored_settings(self) -> list[UniverseSetting]:
        """List the settings that are stored with the universe: every process goes by them."""
        return await setting_calls.stored(self._connection)

    async def store_settings(self, values: Mapping[str, int | bool | None], /) -> bool:
        """Choose settings for every process that has to do with this universe; None: each goes by its own again. False
        if it was so already.

        By their names: what is kept of worlds (`worker.snapshots_kept`, `worker.snapshots_kept_ms`,
        `worker.segment_entries`, `worker.segment_ms`, `worker.segment_margin`, `worker.segment_changes`,
        `worker.journal_kept_ms`), and all of `pressure`, such as `pressure.inbox_items_max`: when inputs from outside
        are refused.
        """
        return await setting_calls.choose(self._connection, values)

    async def collect(self, *, dry_run: bool = False, grace: Seconds = collection_calls.GRACE) -> Collected:
        """Delete what no world refers to any more, or say what would go. Hosts do so by themselves, now and then.

        What nothing refers to is condemned, and deleted by a later collection, `grace` seconds after. With a grace of 0
        it goes at once: safe for everything that is stored, but a reader that is just reading an older state may find
        a part of it gone, and has to begin again.
        """
        return await collection_calls.collect(self._connection, dry_run=dry_run, grace=grace)

    async def dead(
        self,
        *,
        status: Status | None = None,
        labels: Mapping[str, str] | None = None,
        program: str = "",
        prefix: str = "",
    ) -> AsyncIterator[DeadLetter]:
        """List the inputs that worlds could not take: world by world, each world's newest first. Each has `retry()`
        and `drop()`.
        """
        wanted = listing.wanted(status=status, labels=labels, program=program, prefix=prefix)
        async for letter in dead_letters.of_worlds(self._connection, wanted):
            yield letter


def _check_given(name: object, program: object) -> None:
    if not isinstance(name, str) or not isinstance(program, Program):
        raise errors.BadInput(f"a world has a name and a program: ensure('shop-1', app), not {name!r} and {program!r}")
