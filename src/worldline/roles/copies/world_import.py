"""Making a world of a file (`world_file`): everything is checked, and the world is there only then.

Blobs are put as they come; then the keys of the world, under an id that was never used; last, in one batch, its record
and its name. Until then nothing shows it, and what is left of an import that failed or was killed is swept
(`layers/upkeep/imports.py`) and collected.

An imported world is a world of its own: it has another id, so no intent, no call outside and no draw of it is ever that
of the world it was exported from, or of another import of the same file. Its first step is that of a fork: it says what
becomes of effects that were open, as a policy. It begins archived (`layers/upkeep/held.py`): until it is resumed, it
takes no input, no timer of it fires and no effect is tried.

Answers that were unread when it was exported are not taken over: they are answers to the intents of the other world.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits, probes
from worldline.codec import digest, pack, structs, tuples
from worldline.keys import inbox as inbox_keys
from worldline.layers import blobs as blob_layer
from worldline.layers import cas, universes, worlds
from worldline.layers import inbox as inboxes
from worldline.layers.stored import lines
from worldline.layers.upkeep import imports
from worldline.model import ids, inbox, journal, snapshot
from worldline.model import world as model
from worldline.model.upkeep import copies
from worldline.roles.copies import check, world_export, world_file
from worldline.roles.copies.world_file import Tag
from worldline.roles.quotas import admission
from worldline.store import kv, transact

T = TypeVar("T")
_ANSWERS = (inbox.Receipt, inbox.TimerFired)
_ORDER = (Tag.WORLD, Tag.SNAPSHOT, Tag.DROPPED, Tag.SEGMENT, Tag.DEAD, Tag.SEEN, Tag.UNREAD, Tag.SEALED, Tag.SUBJECT)
SWEEP_PAGE = 1_000
ABANDONED_US = 24 * 3_600_000_000  # an import that began so long ago is not going on any more


class Wanted(msgspec.Struct, frozen=True):
    """What a file is imported as. `name`: empty for the one in the file. `live`: None for what it was."""

    name: str = ""
    policy: model.Policy = model.Policy.DROP
    live: bool | None = None
    source: str = "a file"


class Imported(msgspec.Struct, frozen=True):
    """The world that was made. `answers`: unread ones that were left out."""

    name: str
    id: str
    program: str
    height: int
    step: int
    chain: str
    state: str
    blobs: int
    segments: int
    snapshots: int
    unread: int
    answers: int
    dead: int
    at: ids.Address


class Importer:
    """Reads one file into a universe."""

    def __init__(
        self, engine: kv.Engine, env: envs.Env, blobs: blob_layer.Blobs, universe: ids.UniverseId, asked: Wanted, *,
        keep: world_export.Keep | None = None,
    ) -> None:  # fmt: skip
        self._keep = keep
        self._engine = engine
        self._env = env
        self._blobs = blobs
        self._at = ids.Address(universe, ids.WorldId(envs.new_id(env)))
        self._asked = asked
        self._world: copies.ExportedWorld | None = None
        self._name = asked.name
        self._request = b""
        self._generation_raw: bytes | None = None
        self._live = True
        self._under_way: imports.Import | None = None
        self._known: dict[bytes, None] = {}  # addresses of all blobs of the file
        self._waiting: list[bytes] = []  # blobs that are to be put
        self._waiting_bytes = 0
        self._body = b""  # the last blob
        self._checking = check.Checking(blobs, self._at, self._known)
        self._batch = kv.Batch()  # keys that are to be written
        self._batch_bytes = 0
        self._place = 0  # in `_ORDER`, of the last record
        self._unread = self._answers = self._dead = self._snapshots = 0

    async def read(self, records: Iterable[pack.Record]) -> Imported:
        """The whole file. `Corrupt` if anything of it is wrong, `Exists` if the name is taken."""
        try:
            for tag, data in world_file.whole(records):
                found = await self._take(tag, data)
                if found is not None:
                    return found
            return await self._finish()
        except BaseException:
            if self._under_way is not None:
                await _sweep(self._engine, self._env, self._under_way)
            raise

    async def _take(self, tag: int, data: bytes) -> Imported | None:
        """One record. The world, if this very file was imported under this name before."""
        if tag == Tag.BLOB and self._world is not None:
            await self._take_blob(data)
            return None
        if tag not in _ORDER or _ORDER.index(Tag(tag)) < self._place or (self._world is None) is not (tag == Tag.WORLD):
            raise errors.DecodeError(f"a record {tag} does not belong here")
        self._place = _ORDER.index(Tag(tag))
        match tag:
            case Tag.WORLD:
                return await self._begin(_record(copies.ExportedWorld, data), data)
            case Tag.SNAPSHOT:
                await self._take_snapshot(_record(snapshot.Snapshot, data))
            case Tag.DROPPED:
                gone = _record(journal.Dropped, data)
                self._checking.take_dropped(gone)
                imports.put_dropped(self._batch, self._at, gone)
            case Tag.SEGMENT:
                await self._put_blobs()
                record = _record(journal.Segment, data)
                await self._checking.take_segment(record, self._body)
                imports.put_segment(self._batch, self._at, record)
            case Tag.DEAD:
                self._need_refs(inbox_keys.DEAD.unpack(data).item)
                self._dead += 1
                imports.put_dead(self._batch, self._at, data, number=self._dead)
            case Tag.SEEN:
                seen = _record(copies.Seen, data)
                _check_seen(seen.seen, seen.record[: -limits.STAMP_BYTES])
                imports.put_seen(self._batch, self._at, seen)
            case Tag.SEALED:
                imports.put_sealed(self._batch, self._at, _record(copies.Apart, data))
            case Tag.SUBJECT:
                imports.put_subject(self._batch, self._at, _record(copies.Apart, data))
            case _:
                self._take_unread(_record(copies.Unread, data))
        await self._written(len(data))
        return None

    async def _begin(self, found: copies.ExportedWorld, data: bytes) -> Imported | None:
        self._world = found
        self._name = ids.check_name(self._asked.name or found.name, "a world's name")
        live = not found.dry if self._asked.live is None else self._asked.live
        self._request = digest.hash_parts(b"import", data, self._name.encode(), bytes([self._asked.policy, live]))
        self._live = live
        made = await self._made_before()
        if made is not None:
            return made
        batch = kv.Batch()
        universe = self._at.universe
        read = await self._engine.read(universes.get_generation(universe), universes.get_meta(universe))
        self._generation_raw = read.value(0)  # before any blob is put
        universes.expect_there(batch, universe, read.value(1))
        begun = imports.begin(
            batch, self._at, token=envs.new_id(self._env), source=self._asked.source[:256], time_us=read.time_us
        )
        await self._commit(batch)
        self._under_way = begun
        return None

    async def _made_before(self) -> Imported | None:
        """The world that this very import has made before. `Exists` if the name is another world's."""
        at = worlds.named(
            self._at.universe, (await self._engine.read(worlds.get_name(self._at.universe, self._name))).value(0)
        )
        if at is None:
            return None
        lineage = lines.decode_lineage((await self._engine.read(lines.get(at))).value(0))
        if lineage is None or lineage.request != self._request:
            raise errors.Exists(f"there is a world named {self._name!r} already; import it under another name (--as)")
        return self._result(at)

    async def _take_blob(self, data: bytes) -> None:
        self._body = data
        self._known[cas.address(data)] = None
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= limits.COPY_KEYS_BYTES:
            await self._put_blobs()

    async def _put_blobs(self) -> None:
        if self._keep is not None:
            await self._keep()
        if self._waiting:
            await self._blobs.put_many(self._waiting)
            self._waiting, self._waiting_bytes = [], 0

    async def _take_snapshot(self, record: snapshot.Snapshot) -> None:
        await self._put_blobs()
        await self._checking.take_snapshot(record)
        imports.put_snapshot(self._batch, self._at, record)
        self._snapshots += 1

    def _take_unread(self, unread: copies.Unread) -> None:
        if len(unread.item) > limits.ITEM_BYTES_MAX:
            raise errors.DecodeError(f"an input of {len(unread.item)} bytes; the limit is {limits.ITEM_BYTES_MAX}")
        if unread.seen:
            _check_seen(unread.seen, unread.record)
        if isinstance(self._need_refs(unread.item), _ANSWERS):
            self._answers += 1
            return
        imports.put_unread(self._batch, self._at, unread)
        self._unread += 1

    def _need_refs(self, raw: bytes) -> inbox.Item | None:
        """The input that these bytes are, if they are one. The blob that it refers to must be in the file."""
        for address in world_export.refs(raw):
            self._checking.need(address)
        return inboxes.item_of(raw)

    async def _written(self, size: int) -> None:
        """Commit what is waiting, if it is much."""
        self._batch_bytes += size
        if self._batch_bytes >= limits.COPY_KEYS_BYTES or len(self._batch.appends) >= SWEEP_PAGE:
            await self._put_keys()

    async def _put_keys(self) -> None:
        assert self._under_way is not None
        await self._put_blobs()
        batch, self._batch, self._batch_bytes = self._batch, kv.Batch(), 0
        if batch.puts or batch.appends:
            after = imports.advance(batch, self._under_way)
            await self._commit(batch)
            self._under_way = after

    async def _commit(self, batch: kv.Batch) -> None:
        [outcome] = await transact.commit(self._engine, self._env, batch)
        if not isinstance(outcome, kv.Ok):
            raise errors.Conflicted("the import was given up by a sweep, because it took too long; import it again")

    async def _finish(self) -> Imported:
        """Everything was read and checked: the world is made."""
        world = self._world
        if world is None:
            raise errors.DecodeError("the file has no world")
        baseline = await self._checking.check_end(world.head)
        await self._put_keys()
        assert self._under_way is not None
        under_way, last = self._under_way, world.origins[-1]

        async def attempt() -> transact.Done[Imported] | transact.Write[Imported]:
            made = await self._made_before()
            if made is not None:
                return transact.Done(made)
            generation_raw, time_us = await self._raised()
            meta = model.WorldMeta(
                self._name, world.program, world.program_hash, world.status, world.labels, time_us, dry=not self._live
            )
            lineage = model.Lineage(
                last.world, world.name, world.head.step, world.head.height, [], self._asked.policy, self._live, time_us,
                self._request, origins=list(world.origins),
            )  # fmt: skip
            batch = kv.Batch()
            universe = self._at.universe
            read = await self._engine.read(universes.get_meta(universe), *admission.reads(universe))
            universes.expect_there(batch, universe, read.value(0))
            await admission.check(self._engine, batch, universe, read.value(1), read.value(2))
            imports.finish(
                batch, under_way, meta=meta, lineage=lineage, head=world.head, baseline=baseline,
                source=self._asked.source[:256], time_us=time_us, generation_raw=generation_raw,
            )  # fmt: skip
            return transact.Write(batch, lambda _: self._result(self._at))

        found = await transact.run(self._engine, self._env, attempt)
        if found.at == self._at:
            self._under_way = None
        return found

    async def _raised(self) -> tuple[bytes | None, int]:
        """The present generation, as it is stored, with all blobs raised to it; and the store's time."""
        read = await self._engine.read(universes.get_generation(self._at.universe))
        if read.value(0) != self._generation_raw:
            probes.hit("copies.collected-meanwhile")
            await self._blobs.touch_many(list(self._known))
            self._generation_raw = read.value(0)
        return read.value(0), read.time_us

    def _result(self, at: ids.Address) -> Imported:
        world = self._world
        assert world is not None
        head = world.head
        return Imported(
            self._name, at.world.hex(), world.program, head.height, head.step, head.chain.hex(), head.state.hex(),
            len(self._known), self._checking.segments, self._snapshots, self._unread, self._answers, self._dead, at,
        )  # fmt: skip


async def sweep(engine: kv.Engine, env: envs.Env, universe: ids.UniverseId, *, age_us: int = ABANDONED_US) -> int:
    """Delete what is left of imports that were abandoned. Returns how many there were."""
    read = await engine.read(imports.imports_range(universe, count_max=SWEEP_PAGE))
    old = [
        each
        for each in imports.decode_imports(universe, read.page(0))
        if each.began_us <= read.time_us - age_us
    ]  # fmt: skip
    for each in old:
        await _sweep(engine, env, each)
    return len(old)


async def _sweep(engine: kv.Engine, env: envs.Env, under_way: imports.Import) -> None:
    """Delete what was written of an import. If that fails now, it is swept later."""
    while True:
        ranges = imports.keys_ranges(under_way.at, count_max=SWEEP_PAGE)
        read = await engine.read(worlds.get(under_way.at), *ranges)
        if read.value(0) is not None:
            return  # it was made after all: only the answer was lost
        found = [key for index in range(len(ranges)) for key, _ in read.page(index + 1).items]
        batch = kv.Batch()
        after = imports.sweep(batch, under_way, found)
        [outcome] = await transact.commit(engine, env, batch)
        if not found or not isinstance(outcome, kv.Ok):
            return
        under_way = after


def _record(kind: type[T], data: bytes) -> T:
    return structs.decode(kind, data)


def _check_seen(seen: bytes, record: bytes) -> None:
    """The end of the key of an id, and its record: nothing else may be written by a file."""
    match tuples.unpack(seen):
        case (0, tuples.Uuid()) | (1, bytes()) | (2, bytes()):
            inbox_keys.SEEN.unpack(record)
        case _:
            raise errors.DecodeError("not an id that was seen")
