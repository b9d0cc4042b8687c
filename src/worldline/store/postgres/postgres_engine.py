"""The engine for servers: one ordered table in PostgreSQL. `sql` has the theory of a commit, `groups` of sharing one.

Callers' batches wait in one queue. Whenever a connection is free, it takes all waiting batches that may share a
statement and sends them together, so the more callers, the fewer syncs. The callers wait for their answers; one that
goes away takes its batch along only if that was not sent yet.

Reads that find every reading connection busy wait together and are answered by one statement, each by the part it asked
for: one snapshot serves them all.

A commit is `CommitUnknown` only if its statement may have reached the server. Reads are tried again on new connections,
so a restart of the server is a pause. Every read is answered by the primary: a standby is refused.
"""

from __future__ import annotations

import asyncio
import functools
import warnings
from collections.abc import Awaitable, Callable, Sequence

from worldline.base import env as envs
from worldline.base import errors, limits, probes
from worldline.store import hints, kv
from worldline.store.postgres import groups, notices, postgres_store, sql
from worldline.store.postgres.postgres_connections import Again, BrokenConnection, Pool, PostgresSession, Row
from worldline.store.postgres.postgres_settings import DEFAULTS, PostgresSettings, parse

# The server answers a range by one row, which must stay well below its gigabyte; a longer page says that there is more.
_PAGE_BYTES_MAX = 256 * limits.MIB
_PAGE_COUNT_MAX = 2**31 - 2  # with one added, still a 32-bit integer
# What waits together at most: requests, and ranges among them, whose pages may be large.
_SHARED_REQUESTS_MAX = 1_024
_SHARED_RANGES_MAX = 32
_LOOKS = 50  # for older transactions to end, before dead rows are taken out
_LOOK_MS = 20


class _Shared:
    """Reads that wait together, each with what it had seen, and where its answer goes."""

    def __init__(self) -> None:
        self.requests: list[kv.Request] = []
        self.ranges = 0
        self.reads: list[
            tuple[int, int, asyncio.Future[kv.ReadResult]]
        ] = []  # with how many of the requests are its own

    def has_room(self, requests: Sequence[kv.Request]) -> bool:
        ranges = sum(isinstance(request, kv.Range) for request in requests)
        return len(self.requests) + len(requests) <= _SHARED_REQUESTS_MAX and self.ranges + ranges <= _SHARED_RANGES_MAX

    def add(self, requests: Sequence[kv.Request], seen: int, answer: asyncio.Future[kv.ReadResult]) -> None:
        self.requests += requests
        self.ranges += sum(isinstance(request, kv.Range) for request in requests)
        self.reads.append((len(requests), seen, answer))

    def answer(self, whole: kv.ReadResult) -> None:
        start = 0
        for count, seen, answer in self.reads:
            if not answer.done():
                answer.set_result(kv.ReadResult(whole.answers[start : start + count], whole.time_us, seen))
            start += count

    def fail(self, error: errors.Error) -> None:
        for _, _, answer in self.reads:
            if not answer.done():
                answer.set_exception(error)


async def open(url: str, env: envs.Env, *, create: bool, settings: PostgresSettings = DEFAULTS) -> PostgresEngine:
    """Open the store in the URL's schema; with `create`, make it if there is none."""
    address = parse(url)

    async def connect(*, statements: bool = True) -> PostgresSession:
        return await postgres_store.connect(address, settings, env, statements=statements)

    session = await postgres_store.prepare(address, settings, env, create=create)
    engine = PostgresEngine(env, settings, connect, address.schema)
    try:
        engine.adopt(session)
        await engine.start()
        durability = await engine.durability()
    except BaseException:
        await engine.close()
        raise
    if not durability.full:
        text = ", ".join(f"{name}={value}" for name, value in durability.settings.items())
        warnings.warn(f"{address.shown}: an Ok may be lost in a crash: {text}", errors.DurabilityWarning, stacklevel=2)
    return engine


class PostgresEngine:
    """Made by `open`."""

    def __init__(
        self, env: envs.Env, settings: PostgresSettings, connect: Callable[..., Awaitable[PostgresSession]], schema: str
    ) -> None:
        self._env = env
        self._settings = settings
        self._connect = connect
        self._schema = schema
        self.hints = hints.HintBoard()
        listen = functools.partial(connect, statements=False)
        self._notices = notices.Notices(self.hints, listen, env, schema, settings)
        self._sessions = Pool(connect, settings.read_connections + settings.commit_connections)
        # Reads wait here and not for the pool, so that they never take the connections that commits need.
        self._readers = asyncio.Semaphore(settings.read_connections)
        self._queue = groups.BatchQueue(
            batches_max=settings.group_batches_max,
            bytes_max=settings.group_bytes_max,
            scan_max=settings.scan_batches_max,
        )
        self._under_way: dict[asyncio.Task[bool], None] = {}
        self._shared: _Shared | None = None  # where reads wait together
        self._sharing: dict[asyncio.Task[None], None] = {}
        self._reading = 0
        # Set while no read is under way: `close` waits for that before it closes the connections.
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._closed = False

    def adopt(self, session: PostgresSession) -> None:
        """Use the session by which the store was opened."""
        self._sessions.add(session)

    async def start(self) -> None:
        await self._notices.start()

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        self._check_open()
        kv.check_requests(requests)
        # Before the snapshot: a hint that comes in between is looked at once too often, and never missed.
        seen = self.hints.seen
        if self._readers.locked():
            return await self._read_together(requests, seen)
        backwards, arguments = _ask(requests)
        base, rows = await self._with_reader(lambda session: session.read(arguments, backwards=backwards))
        return _answer(requests, base, rows, seen)

    def _read_together(self, requests: Sequence[kv.Request], seen: int) -> asyncio.Future[kv.ReadResult]:
        """Wait for a connection with others. A caller that is cancelled does not disturb the others."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[kv.ReadResult] = loop.create_future()
        if self._shared is None or not self._shared.has_room(requests):
            self._shared = _Shared()
            task = loop.create_task(self._serve_reads(self._shared), name="worldline postgres read")
            self._sharing[task] = None
            task.add_done_callback(self._sharing.pop)
        self._shared.add(requests, seen, answer)
        return answer

    async def _serve_reads(self, shared: _Shared) -> None:
        async def call(session: PostgresSession) -> Sequence[Row]:
            if self._shared is shared:
                self._shared = None  # callers from now on wait for the next
            backwards, arguments = _ask(shared.requests)
            return await session.read(arguments, backwards=backwards)

        try:
            base, rows = await self._with_reader(call)
        except errors.Error as error:
            shared.fail(error)
        else:
            shared.answer(_answer(shared.requests, base, rows, 0))
        finally:
            if self._shared is shared:
                self._shared = None

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        self._check_open()
        for batch in batches:
            kv.check(batch)
        loop = asyncio.get_running_loop()
        entries = [groups.WaitingBatch(batch, loop.create_future()) for batch in batches]
        self._queue.add(entries)
        self._pump()
        if len(entries) == 1:
            return _outcomes([await entries[0].answer])
        return _outcomes(await asyncio.gather(*(entry.answer for entry in entries)))

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        self._check_open()
        return await self.hints.wait(prefix, seen, timeout_ms)

    async def freeze(self) -> kv.Frozen:
        """A connection of its own, with one transaction: what it reads was there when it began."""
        self._check_open()
        session = await self._connect()
        try:
            await session.execute(sql.FREEZE)
            await session.row(sql.PING)  # what is read first decides what is seen
        except (Again, BrokenConnection) as error:
            session.abort()
            raise errors.StoreUnavailable(f"the server broke the connection: {error}") from error
        except BaseException:
            session.abort()
            raise
        return FrozenPostgres(session)

    async def raise_stamps(self, above: kv.Stamp) -> None:
        """Connections know where their stamps begin, so they are opened again."""
        self._check_open()
        session = await self._sessions.take()
        try:
            await session.row(sql.raise_base(self._schema), kv.stamp_version(above) + 1)
        except (Again, BrokenConnection) as error:
            raise errors.StoreUnavailable(f"the server broke the connection: {error}") from error
        finally:
            session.abort()
            self._sessions.give(session)
        await self._sessions.close_idle()

    async def scrub(self) -> kv.Scrubbed:
        """Have the server take dead rows out of its pages, on a connection of its own. Their bytes stay in these pages
        until other rows are written there, and in its log: no statement overwrites them.
        """
        self._check_open()
        session = await self._connect(statements=False)
        try:
            await session.take_time()
            [oldest] = await session.row(sql.OLDEST)
            older = [0]
            for attempt in range(_LOOKS):  # what runs now is most often done in a moment
                await self._env.sleep(attempt and _LOOK_MS / 1000)
                older = [int(row[0]) for row in await session.rows(sql.OLDER, oldest)]
                if not older:
                    break
            await session.execute(sql.vacuum(self._schema))
        except (Again, BrokenConnection) as error:
            raise errors.StoreUnavailable(f"the server broke the connection: {error}") from error
        finally:
            await session.close()
        return kv.Scrubbed(complete=not older, held_by=tuple(older))

    async def durability(self) -> kv.Durability:
        self._check_open()
        _, rows = await self._with_reader(lambda session: session.rows(sql.DURABILITY))
        found = {str(name): str(value) for name, value in rows}
        return kv.Durability(full=_is_full(found), settings=dict(sorted(found.items())))

    async def close(self) -> None:
        self._closed = True
        self.hints.note(None)
        # A task that ends starts another for what still waits, so this asks again.
        while self._under_way or self._sharing:
            await asyncio.wait([*self._under_way, *self._sharing])
        await self._quiet.wait()
        await self._notices.stop()
        await self._sessions.close()

    def _pump(self) -> None:
        """Start a task for what waits, if a connection is free."""
        if self._queue and len(self._under_way) < self._settings.commit_connections:
            task = asyncio.create_task(self._serve(), name="worldline postgres commit")
            self._under_way[task] = None
            task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[bool]) -> None:
        del self._under_way[task]
        if task.cancelled() or task.exception() is not None or task.result():
            self._pump()

    async def _serve(self) -> bool:
        """Commit the next group by the next free connection and answer its callers. False if there was none.

        The group is made when the connection is there, so that what comes meanwhile is in it.
        """
        session: PostgresSession | None = None
        answers: Sequence[groups.Answer] = []
        failure: groups.Answer = kv.CommitUnknown("the commit was interrupted")
        try:
            session = await self._sessions.take()
        except errors.Error as error:
            failure = error
        # Only now that a connection is there: what came while it was waited for goes along.
        group = self._queue.take()
        self._pump()
        try:
            if session is not None and group:
                answers = await self._commit_group(session, group)
            elif session is not None:
                self._sessions.give(session)
        finally:
            # In `finally`: also if this task is cancelled, every caller gets an answer, and the keys are free again.
            self._queue.release(group)
            for index, entry in enumerate(group):
                entry.resolve(answers[index] if answers else failure)
        return bool(group)

    async def _commit_group(
        self, session: PostgresSession, group: list[groups.WaitingBatch]
    ) -> Sequence[groups.Answer]:
        """The answers of a group, whole or undone each time. Gives the session back."""
        undone = ""
        for attempt in range(self._settings.commit_attempts):
            if attempt > 1:
                await self._pause(attempt)
            try:
                session = await self._sessions.take() if attempt else session
            except errors.Error as error:
                return [error] * len(group)
            try:
                # Deleting early is tried once: where a batch does not hold, all of the statement was for nothing.
                row = await session.commit(groups.encode(session.base, group, hasty=not attempt))
            except Again as error:
                probes.hit("postgres.commit-undone")
                undone = str(error)
                continue
            except BrokenConnection as error:
                probes.hit("postgres.commit-unknown")
                return [kv.CommitUnknown(str(error))] * len(group)
            except errors.StoreError as error:
                return [error] * len(group)
            finally:
                self._sessions.give(session)
            answers = groups.decode(group, row)
            self._tell(group, answers)
            return answers
        text = f"undone {self._settings.commit_attempts} times because of other writers; try again later: {undone}"
        return [errors.StoreUnavailable(text)] * len(group)

    def _tell(self, group: list[groups.WaitingBatch], answers: Sequence[groups.Answer]) -> None:
        for entry, answer in zip(group, answers, strict=True):
            if isinstance(answer, kv.Ok):
                written = hints.written(entry.batch)
                self.hints.note(written)
                self._notices.tell(written)

    async def _with_reader(
        self, call: Callable[[PostgresSession], Awaitable[Sequence[Row]]]
    ) -> tuple[int, Sequence[Row]]:
        """Run a statement that changes nothing, on another connection if the first one breaks."""
        self._reading += 1
        self._quiet.clear()
        try:
            async with self._readers:
                return await self._read_from_any(call)
        finally:
            self._reading -= 1
            if not self._reading:
                self._quiet.set()

    async def _read_from_any(
        self, call: Callable[[PostgresSession], Awaitable[Sequence[Row]]]
    ) -> tuple[int, Sequence[Row]]:
        reason: Exception | None = None
        for attempt in range(self._settings.read_attempts):
            if attempt > 1:
                await self._pause(attempt)
            session = await self._sessions.take()
            try:
                # Of this very session: after a promotion, another one may count from another base.
                return session.base, await call(session)
            except (Again, BrokenConnection) as error:
                reason = error
            finally:
                self._sessions.give(session)
        text = f"no answer to a read in {self._settings.read_attempts} attempts; check the server: {reason}"
        raise errors.StoreUnavailable(text) from reason

    async def _pause(self, attempt: int) -> None:
        delay_ms = envs.backoff_ms(self._env, attempt, first_ms=limits.RETRY_FIRST_MS, most_ms=limits.RETRY_MOST_MS)
        await self._env.sleep(delay_ms / 1000)

    def _check_open(self) -> None:
        if self._closed:
            raise errors.StoreUnavailable("this store is closed")


class FrozenPostgres:
    """`kv.Frozen`: a transaction that stays open, on a connection of its own."""

    def __init__(self, session: PostgresSession) -> None:
        self._session = session
        self._turn = asyncio.Lock()  # a connection runs one statement at a time

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        kv.check_requests(requests)
        backwards, arguments = _ask(requests)
        try:
            async with self._turn:
                rows = await self._session.read(arguments, backwards=backwards)
        except (Again, BrokenConnection) as error:
            raise errors.StoreUnavailable(f"the connection of a frozen state ended; begin again: {error}") from error
        return _answer(requests, self._session.base, rows, 0)

    async def close(self) -> None:
        await self._session.close()


def _ask(requests: Sequence[kv.Request]) -> tuple[bool, list[object]]:
    """Whether a range is read backwards, and the statement's arguments: the gets' keys, and the ranges by columns."""
    ranges = [request for request in requests if isinstance(request, kv.Range)]
    reverses = [int(request.reverse) for request in ranges]
    return any(reverses), [
        [request.key for request in requests if isinstance(request, kv.Get)],
        [request.begin for request in ranges],
        [request.end for request in ranges],
        [min(request.count_max, _PAGE_COUNT_MAX) for request in ranges],
        [min(request.bytes_max, _PAGE_BYTES_MAX) for request in ranges],
        reverses,
    ]


def _answer(requests: Sequence[kv.Request], base: int, rows: Sequence[Row], seen: int) -> kv.ReadResult:
    by_place = {row[0]: row for row in rows}
    _, time_us, oldest, _, values = by_place[0]
    stable = kv.stamp(base + oldest, 0)
    gets = iter(values)
    answers: list[bytes | kv.Page | None] = []
    place = 0
    for request in requests:
        if isinstance(request, kv.Get):
            answers.append(next(gets))
            continue
        place += 1
        _, total, _, keys, contents = by_place[place]
        items = list(zip(keys or (), contents or (), strict=True))
        answers.append(kv.Page(items, more=total > len(items), stable=stable))
    return kv.ReadResult(answers, time_us, seen)


def _outcomes(answers: Sequence[groups.Answer]) -> list[kv.Outcome]:
    """The call's outcomes. An error is raised if it is certain that nothing was applied, else it means "unknown"."""
    failures = [answer for answer in answers if isinstance(answer, errors.Error)]
    outcomes: list[kv.Outcome] = []
    for answer in answers:
        if isinstance(answer, errors.Error):
            outcomes.append(kv.CommitUnknown(str(answer)))
        else:
            outcomes.append(answer)
    if failures and not any(isinstance(answer, kv.Ok | kv.CommitUnknown) for answer in answers):
        raise failures[0]
    return outcomes


def _is_full(settings: dict[str, str]) -> bool:
    """Whether an `Ok` survives a crash of the server, and with synchronous standbys, its loss.

    Without standbys every synchronous_commit but `off` waits for the local disk. With them, `local` does not wait for
    them and `remote_write` not for their disks.
    """
    waits = (
        ("on", "remote_apply")
        if settings["synchronous_standby_names"]
        else ("on", "remote_apply", "remote_write", "local")
    )
    return (
        settings["fsync"] == "on" and settings["full_page_writes"] == "on" and settings["synchronous_commit"] in waits
    )
