"""Opening a PostgreSQL store: what is refused and how it says so, what durability it reports, whom it lets in."""

from __future__ import annotations

import asyncio
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from tests import aio
from tests.conformance import batches
from tests.servers import postgres as servers
from tests.store.postgres_kit import ENV, Place
from worldline.base import errors, limits
from worldline.store import kv, postgres, transact
from worldline.store.postgres import postgres_settings, sql

FEW = postgres_settings.PostgresSettings(connect_attempts=2, connect_timeout_ms=1_000)
SECRET = "s3cret-%40-word"


@pytest.fixture
def place() -> Place:
    return Place(servers.shared())


@pytest.fixture(scope="module")
def own() -> Iterator[servers.Server]:
    """A server of this module's own, to be stopped and misconfigured. Each test leaves it started, as it was."""
    server = servers.start(tcp=True)
    yield server
    server.close()


@pytest.fixture
def own_place(own: servers.Server) -> Place:
    return Place(own)


BAD_URLS = [
    "",
    "worlds",
    "mysql://localhost/x",
    "postgresql://u@localhost/x?schema=",
    "postgresql://u@localhost/x?schema=Upper",
    "postgresql://u@localhost/x?schema=a-b",
    "postgresql://u@localhost/x?schema=1st",
    "postgresql://u@localhost/x?schema=pg_own",
    "postgresql://u@localhost/x?schema=information_schema",
    "postgresql://u@localhost/x?schema=a;drop%20table%20b",
    "postgresql://u@localhost/x?schema=%22a%22",
    "postgresql://u@localhost/x?schema=" + "a" * 49,
    "postgresql://u@localhost/x?schema=a&schema=b",
    "postgresql://u@localhost/x?schema",
    "postgresql://u@[::1/x",
    "postgresql://u@localhost:port/x",
    "postgresql://u@localhost/x?sslmode=perhaps",
]


@pytest.mark.parametrize("url", BAD_URLS)
async def test_a_url_that_names_nothing_is_refused(url: str) -> None:
    with pytest.raises(errors.BadUrl) as caught:
        await postgres.open(url.replace("u@", f"u:{SECRET}@"), ENV, create=True, settings=FEW)
    _check_message(caught.value)


def _check_message(error: BaseException) -> None:
    """One line, and nowhere in what would be printed, causes included, the password."""
    assert "\n" not in str(error)
    text = "".join(traceback.format_exception(error))
    for secret in (SECRET, "s3cret"):
        assert secret not in text


def test_names_that_need_no_quoting_are_accepted() -> None:
    for name in ("a", "_", "worldline", "a1_b", "public", "z" * 48):
        address = postgres_settings.parse(f"postgresql://u:p@h/d?schema={name}&sslmode=disable")
        assert address.schema == name
        assert address.dsn == "postgresql://u:p@h/d?sslmode=disable"
        assert "p@" not in address.shown
        assert len(sql.channel(name)) <= 63
    assert postgres_settings.parse("postgres://h1:1,h2:2/d").schema == postgres_settings.SCHEMA_DEFAULT
    assert postgres_settings.parse("postgresql://u:p@/d?host=/run/pg").shown == "postgresql://u:***@/d?host=/run/pg"


async def test_a_setting_the_server_does_not_know_is_a_bad_url(place: Place) -> None:
    with pytest.raises(errors.BadUrl, match="shema"):
        await place.open(place.url.replace("schema=", "shema="))


async def test_nobody_listening_is_told_after_a_few_attempts(own: servers.Server) -> None:
    own.stop()
    try:
        for url in (own.url(), own.url(tcp=True, password=SECRET)):
            with pytest.raises(errors.StoreUnavailable, match="check that the server runs") as caught:
                await postgres.open(url, ENV, create=True, settings=FEW)
            _check_message(caught.value)
    finally:
        own.start()


async def test_a_server_that_is_about_to_start_is_waited_for(own: servers.Server, own_place: Place) -> None:
    own.stop()
    starting = asyncio.ensure_future(asyncio.to_thread(own.start))
    engine = await own_place.open()
    await starting
    await batches.ok(engine, batches.create(b"a", b"1"))


async def test_a_missing_database_or_store(place: Place) -> None:
    for create in (True, False):
        with pytest.raises(errors.StoreMissing, match="no such database"):
            await place.open(place.server.url(database="nowhere", schema=place.schema), create=create)
    with pytest.raises(errors.StoreMissing, match="no store there"):
        await place.open(create=False)
    raw = await place.raw()
    assert await raw.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = $1", place.schema) == 0
    await raw.execute(f"CREATE SCHEMA {place.schema}")
    with pytest.raises(errors.StoreMissing, match="no store there"):
        await place.open(create=False)
    await place.open(create=True)


async def test_a_store_whose_schema_is_dropped_says_so(place: Place) -> None:
    engine, raw = await place.open(), await place.raw()
    await batches.ok(engine, batches.create(b"a", b"1"))
    await raw.execute(f"DROP SCHEMA {place.schema} CASCADE")
    with pytest.raises(errors.StoreMissing):
        await engine.read(kv.Get(b"a"))
    with pytest.raises(errors.StoreMissing):
        await engine.commit(batches.create(b"b", b"1"))


async def test_a_schema_with_something_else_in_it_is_refused(place: Place) -> None:
    raw = await place.raw()
    await raw.execute(f"CREATE SCHEMA {place.schema}; CREATE TABLE {place.schema}.kv (a int)")
    for create in (True, False):
        with pytest.raises(errors.StoreVersion, match="no Worldline store"):
            await place.open(create=create)


async def test_a_layout_of_another_release_is_refused(place: Place) -> None:
    engine, raw = await place.open(), await place.raw()
    await engine.close()
    await raw.execute("UPDATE store SET layout = layout + 1")
    with pytest.raises(errors.StoreVersion, match="layout 2"):
        await place.open()


async def test_a_server_that_is_too_old_is_refused(place: Place) -> None:
    with pytest.raises(errors.StoreVersion, match=r"PostgreSQL 18\.\d+; at least 99\.0 is needed"):
        await place.open(server_version_min=990_000)


async def test_processes_that_create_one_store_at_once_share_it(place: Place) -> None:
    engines = await asyncio.gather(*(place.open() for _ in range(6)))
    for index, engine in enumerate(engines):
        await batches.ok(engine, batches.create(b"k/%d" % index, b""))
    assert len(await batches.scan(engines[0], b"k/")) == 6


async def test_stores_in_one_database_are_apart() -> None:
    left, right = Place(servers.shared()), Place(servers.shared())
    one, two = await left.open(), await right.open()
    await batches.ok(one, batches.create(b"a", b"left"))
    await batches.ok(two, batches.create(b"a", b"right"))
    assert await batches.get(one, b"a") == b"left"
    assert await batches.get(two, b"a") == b"right"
    await left.aclose()
    await right.aclose()


async def test_a_read_only_server_is_refused_and_named(place: Place) -> None:
    with pytest.raises(errors.StoreUnavailable, match="standby or read-only"):
        await place.open(place.url + "&default_transaction_read_only=on")


async def test_a_standby_is_never_used(own: servers.Server, own_place: Place) -> None:
    """Not when opening, and not when the server behind an open store has become one."""
    engine = await own_place.open()
    await batches.ok(engine, batches.create(b"a", b"1"))
    signal = own.data / "standby.signal"
    own.stop()
    signal.touch()
    own.start()
    try:
        with pytest.raises(errors.StoreUnavailable, match="standby or read-only"):
            await own_place.open()
        with pytest.raises(errors.StoreUnavailable, match="standby or read-only"):
            await engine.read(kv.Get(b"a"))
        with pytest.raises(errors.StoreUnavailable, match="standby or read-only"):
            await engine.commit(batches.create(b"b", b"1"))
    finally:
        own.stop()
        signal.unlink()
        own.start()
    assert await batches.get(engine, b"a") == b"1"
    await batches.ok(engine, batches.create(b"b", b"1"))


async def test_a_wrong_password_is_told_without_telling_it(own: servers.Server) -> None:
    raw = await asyncpg.connect(own.url())
    await raw.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'; GRANT CREATE ON DATABASE postgres TO guarded")
    refusals: list[errors.StoreUnavailable] = []
    access = own.data / "pg_hba.conf"
    before = access.read_text()
    access.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + before)
    await raw.execute("SELECT pg_reload_conf()")
    try:

        async def refused() -> bool:
            try:
                engine = await postgres.open(own.url(user="guarded", password=SECRET, tcp=True), ENV, create=True)
            except errors.StoreUnavailable as error:
                refusals.append(error)
                return True
            await engine.close()
            return False

        await aio.until(refused)
        [refusal] = refusals
        assert "refused the login (28P01)" in str(refusal)
        _check_message(refusal)
        engine = await postgres.open(
            own.url(user="guarded", password="right", tcp=True, schema="guarded"), ENV, create=True
        )
        await batches.ok(engine, batches.create(b"a", b"1"))
        await engine.close()
    finally:
        access.write_text(before)
        await raw.execute("SELECT pg_reload_conf(); DROP OWNED BY guarded; DROP ROLE guarded")
        await raw.close()


async def test_a_plain_role_can_use_a_store_and_one_without_rights_is_told(place: Place) -> None:
    raw, role = await place.raw(), "role_" + place.schema
    await raw.execute(f"CREATE ROLE {role} LOGIN")
    url = place.server.url(user=role, schema=place.schema)
    with pytest.raises(errors.StoreUnavailable, match="grant it"):
        await place.open(url)
    await raw.execute(f"GRANT CREATE ON DATABASE postgres TO {role}")
    engine = await place.open(url)
    await batches.ok(engine, batches.create(b"a", b"1"))
    assert (await engine.durability()).full
    await place.aclose()
    raw = await place.raw()
    await raw.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_full_durability_is_read_back_from_the_server(place: Place) -> None:
    engine, raw = await place.open(), await place.raw()
    durability = await engine.durability()
    shown = {name: await raw.fetchval(f"SHOW {name}") for name in durability.settings}
    assert durability == kv.Durability(full=True, settings=shown)
    assert shown == {
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": "on",
        "synchronous_standby_names": "",
    }


WEAKER: list[dict[str, str]] = [{"fsync": "off"}, {"full_page_writes": "off"}, {"synchronous_commit": "off"}]


@pytest.mark.parametrize("weaker", WEAKER, ids=str)
async def test_less_durability_is_said_loudly(own: servers.Server, own_place: Place, weaker: dict[str, str]) -> None:
    own.stop()
    own.start(**weaker)
    try:
        [(name, value)] = weaker.items()
        with pytest.warns(errors.DurabilityWarning, match=f"{name}={value}"):
            engine = await own_place.open()
        durability = await engine.durability()
        assert not durability.full
        assert durability.settings[name] == value
        await batches.ok(engine, batches.create(b"a", b"1"))
    finally:
        own.stop()
        own.start()


COMMIT_LEVELS = [("on", True), ("remote_apply", True), ("remote_write", True), ("local", True), ("off", False)]


@pytest.mark.parametrize(("level", "full"), COMMIT_LEVELS)
async def test_without_standbys_all_levels_but_off_wait_for_the_disk(place: Place, level: str, full: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = await place.open(f"{place.url}&synchronous_commit={level}")
    assert (await engine.durability()).full is full
    assert [warning.category for warning in caught] == ([] if full else [errors.DurabilityWarning])


async def test_with_a_standby_an_ok_must_have_waited_for_it(own: servers.Server, own_place: Place) -> None:
    """No standby is there, so a commit waits. A commit that is told to stop waiting is no `Ok`: it is unknown."""
    await (await own_place.open()).close()
    raw = await own_place.raw()
    await raw.execute("ALTER SYSTEM SET synchronous_standby_names = 'absent'")
    await raw.execute("SELECT pg_reload_conf()")
    try:
        with pytest.warns(errors.DurabilityWarning, match="synchronous_standby_names=absent"):
            await own_place.open(f"{own_place.url}&synchronous_commit=local")
        engine = await own_place.open(create=False)
        assert (await engine.durability()).full
        batch = batches.create(b"a", b"1")
        committing = asyncio.ensure_future(engine.commit(batch))

        async def told_to_stop() -> bool:
            return bool(
                await raw.fetchval(
                    "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity"
                    " WHERE wait_event = 'SyncRep' AND application_name = $1",
                    f"worldline {own_place.schema}",
                )
            )

        await aio.until(told_to_stop)
        [outcome] = await committing
        assert isinstance(outcome, kv.CommitUnknown)
        assert "standby" in outcome.reason
        repeating = asyncio.ensure_future(transact.commit(engine, ENV, batch))
    finally:
        await raw.execute("ALTER SYSTEM RESET synchronous_standby_names")
        await raw.execute("SELECT pg_reload_conf()")
    # A repeat after an unknown outcome is what `transact.commit` does; here its first run shows our own bytes.
    [again] = await repeating
    assert isinstance(again, kv.Conflict)
    assert kv.applied_before(batch, again)


async def test_stamps_go_on_when_the_store_moves_to_another_cluster(place: Place) -> None:
    """Restored from a dump, a store finds transaction ids that start anew. Its stamps must not."""
    engine, raw = await place.open(), await place.raw()
    batch = batches.once(1)
    batch.append(b"log/", b"before")
    [before] = (await batches.ok(engine, batch)).stamps
    await raw.execute("UPDATE store SET system = system + 1")  # as a dump from elsewhere would have it
    for pid in await place.sessions(raw):
        await raw.execute("SELECT pg_terminate_backend($1)", pid)

    async def refused() -> bool:
        """A connection that was not gone yet may still answer."""
        try:
            await engine.read()
        except errors.StoreFailed as error:
            return "open it again" in str(error)
        return False

    await aio.until(refused)
    for turn in range(2):
        again = await place.open(create=False)
        batch = batches.once(f"again {turn}")
        batch.append(b"log/", b"after")
        [after] = (await batches.ok(again, batch)).stamps
        assert int.from_bytes(after[:8], "big") - int.from_bytes(before[:8], "big") >= sql.BASE_STEP
        assert int.from_bytes(after[:8], "big") < 2 * sql.BASE_STEP, "it moved once"

        async def settled(again: postgres.PostgresEngine = again, after: kv.Stamp = after) -> bool:
            return (await again.read(kv.Range(b"a", b"b"))).page(0).stable > after

        await aio.until(settled)


async def test_an_older_server_of_the_supported_ones_works_too() -> None:
    server = servers.start(version=16)
    place = Place(server)
    engine = await place.open()
    batch = batches.once(1)
    for index in range(50):
        batch.put(b"k/%02d" % index, bytes(5_000))
    batch.append(b"log/", b"x")
    batch.add(b"count", -1)
    await batches.ok(engine, batch)
    sweep = batches.once(2)
    sweep.expect(b"count", kv.counter_add(None, -1))
    sweep.delete_range(b"k/10", b"k/20")
    sweep.delete(b"k/30")
    await batches.ok(engine, sweep)
    page = (await engine.read(kv.Range(b"k/", b"k0", 1_000, 100_000, reverse=True))).page(0)
    assert [key for key, _ in page.items] == [b"k/%02d" % index for index in range(49, 29, -1) if index != 30]
    assert page.more
    await place.aclose()
    server.close()


def test_settings_that_cannot_work_are_refused() -> None:
    for name in postgres_settings.PostgresSettings.__struct_fields__:
        wrong: Any
        for wrong in (0, "5", 10**10):
            with pytest.raises(errors.BadInput, match=f"{name} is {wrong!r}; use a whole number from "):
                postgres_settings.PostgresSettings(**{name: wrong})
    with pytest.raises(errors.BadInput, match="starting_attempts is 3; use a whole number from 7 to"):
        postgres_settings.PostgresSettings(connect_attempts=7, starting_attempts=3)
    with pytest.raises(errors.BadInput, match=f"use a whole number from {limits.BATCH_BYTES_MAX} to"):
        postgres_settings.PostgresSettings(group_bytes_max=limits.BATCH_BYTES_MAX - 1)
