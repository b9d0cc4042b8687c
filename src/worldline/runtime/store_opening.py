"""The composition root: the only place that names engines.

A store is chosen by its URL::

    worlds, ./worlds, /var/lib/worlds     a folder: LMDB, with objects beside it
    postgresql://user@host/database       PostgreSQL; `?schema=name` picks the schema, objects are given apart
    memory://                             nothing is kept; for tests and simulation

Objects: a folder, or `s3://bucket/prefix` with the usual AWS_* variables. Where none are named, blobs of up to 16 MiB
are kept in the store itself, and only larger ones need objects: those of a folder are beside it. Objects in S3 are
cached on disk if `CacheSettings` or the environment name a folder for that, and not otherwise: they hold users' data.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from worldline.base import env as envs
from worldline.base import env_os, errors, limits, private_files
from worldline.layers import store_format as formats
from worldline.model.settings import CacheSettings
from worldline.runtime import child_process, environment, facts, timed_store
from worldline.runtime.feature import Feature
from worldline.runtime.store_wrapping import StoreCodec, StoreWrapping, WrapStore
from worldline.runtime.universe_admission import Admission
from worldline.store import hints as wake_ups
from worldline.store import kv, memory_engine, urls
from worldline.store.lmdb import lmdb_driver
from worldline.store.objects import cached_objects as blob_cache
from worldline.store.objects import folder_objects as objects_folder
from worldline.store.objects import memory_objects as objects_memory
from worldline.store.objects import objects_interface as object_store

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_MEANT_AS_URL = re.compile(r"(postgres|postgresql|s3|memory)[:/]|.*\b(password|dbname)=", re.IGNORECASE | re.DOTALL)
OBJECTS_FOLDER = "objects"
_ENGINES = {"": "lmdb", "postgresql": "postgres"}  # by the scheme of the URL, where the names differ
_NAME_OBJECTS = f"name a folder or s3://bucket/prefix with objects=, --objects or {environment.OBJECTS}"


class Store(msgspec.Struct, frozen=True):
    """An opened store: the engine, the objects, the environment they run in; and a cache of the objects, if any."""

    url: str
    engine: kv.Engine
    objects: object_store.Objects
    env: envs.Env
    features: tuple[Feature, ...]  # what the core asks; without a default, so that no store is opened without them
    cache: blob_cache.BlobCache | None = None
    in_store_bytes_max: int = 0  # blobs up to this size are kept in the store itself; 0: only those in their record
    objects_name: str = "memory"  # what the objects are kept in, as metrics name it
    codec: StoreCodec | None = None  # what users' data is encoded with
    wrapping: StoreWrapping | None = None  # and how
    patience: object_store.Patience = msgspec.field(default_factory=object_store.Patience)  # with objects
    ledger: str = ""  # a file that erasures are written to, besides
    hints: wake_ups.HintBoard | None = None  # keys that were written, if this process may listen to all
    children: child_process.ChildProcesses | None = None  # where last attempts are made; None: in forks of this process

    def __repr__(self) -> str:
        return f"Store({urls.shown(self.url)!r})"

    @property
    def admissions(self) -> tuple[Admission, ...]:
        """What decides whether a universe of this store takes more from outside."""
        return tuple(each for feature in self.features for each in feature.admissions)

    async def close(self) -> None:
        await self.objects.close()
        await self.engine.close()


@asynccontextmanager
async def store(
    url: str,
    *,
    create: bool = True,
    objects: str | None = None,
    env: envs.Env | None = None,
    cache: CacheSettings | None = None,
    codec: StoreCodec | None = None,
    features: tuple[Feature, ...],
) -> AsyncIterator[Store]:
    """`open_store`, closed at the end."""
    opened = await open_store(url, create=create, objects=objects, env=env, cache=cache, codec=codec, features=features)
    try:
        yield opened
    finally:
        await opened.close()


async def open_store(
    url: str,
    *,
    create: bool = True,
    objects: str | None = None,
    env: envs.Env | None = None,
    cache: CacheSettings | None = None,
    codec: StoreCodec | None = None,
    features: tuple[Feature, ...],
) -> Store:
    """Open the store a URL names, refuse one of another format or codec, and create one only if asked."""
    used = env or env_os.OsEnv()
    wrap = wrap_of(features)
    assert wrap is not None or codec is None, "no feature here encodes stores"
    encoding = formats.PLAIN if wrap is None else wrap.marker(codec)
    engine = await open_engine(url, used, create=create)
    try:
        await formats.ensure(engine, used, create=create, encoding=encoding)
        wrapping = None if wrap is None or codec is None else await wrap.wrapping(engine, used, codec)
        named = objects or _objects_named(url)
        where = named or _objects_beside(url)
        in_store_bytes_max = 0 if named and scheme(named) != "none" else limits.CHUNKED_BYTES_MAX
        cached = await _open_cache(where, used, cache or CacheSettings(), wrapping)
        patience = object_store.Patience()
        beside = None if named or scheme(url) else private_files.modes_in(Path(url))
        bodies = await open_objects(where, used, create=create, patience=patience, modes=beside)
    except BaseException:
        # No caller has the engine yet, so none could close it, with its connections.
        await engine.close()
        raise
    opened = Store(
        url,
        engine,
        bodies,
        used,
        features,
        cached,
        in_store_bytes_max,
        scheme(where) or "folder",
        codec,
        wrapping,
        patience,
        environment.ledger(),
        hints_of(engine),
    )
    return opened if wrapping is None else _wrapped(opened, wrapping)


def wrap_of(features: tuple[Feature, ...]) -> WrapStore | None:
    """What encodes stores, if one of these features does."""
    return next((each.wrap_store for each in features if each.wrap_store is not None), None)


def hints_of(engine: kv.Engine) -> wake_ups.HintBoard | None:
    return engine.hints if isinstance(engine, wake_ups.Hinting) else None


def _wrapped(store: Store, wrapping: StoreWrapping) -> Store:
    """The store, with an engine and objects that encode what they are given."""
    engine = wrapping.wrap_engine(store.engine)
    bodies = wrapping.wrap_objects(store.objects, store.engine)
    return msgspec.structs.replace(store, engine=engine, objects=bodies)


def told(store: Store, listening: facts.Telemetry) -> Store:
    """The store, with an engine and objects that tell of their calls if a listener counts them."""
    # Without a listener every call goes straight to the store.
    if not listening.counts:
        return store
    monotonic_us = store.env.monotonic_us
    engine = timed_store.TimedEngine(store.engine, engine_name(store.url), monotonic_us, listening)
    bodies = timed_store.TimedObjects(store.objects, store.objects_name, monotonic_us, listening)
    return msgspec.structs.replace(store, engine=engine, objects=bodies)


def engine_name(url: str) -> str:
    """The engine that a URL picks, as metrics name it."""
    found = scheme(url)
    return _ENGINES.get(found, found)


def disk_room(url: str) -> tuple[int, int] | None:
    """Of the disk that a store's folder is on: the bytes that are free for it, and all. None if it is in no folder."""
    if scheme(url):
        return None
    try:
        found = os.statvfs(url)
    except OSError:
        return None  # it is gone, which the engine reports
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


async def open_engine(url: str, env: envs.Env, *, create: bool) -> kv.Engine:
    match scheme(urls.check_whole(url)):
        case "":
            return await lmdb_driver.open(_folder(url), env, create=create)
        case "postgresql" | "postgres":
            try:
                from worldline.store import postgres  # noqa: PLC0415 - an extra, loaded when asked for
            except ImportError as error:
                raise errors.BadUrl("PostgreSQL needs an extra: pip install 'worldline[postgres]'") from error
            return await postgres.open(url, env, create=create)
        case "memory":
            return memory_engine.MemoryEngine(env)
        case other:
            raise errors.BadUrl(f"no store is opened by {other}://; use a folder, postgresql://... or memory://")


async def open_objects(
    url: str,
    env: envs.Env,
    *,
    create: bool,
    patience: object_store.Patience | None = None,
    modes: private_files.Modes | None = None,
) -> object_store.Objects:
    """`modes`: of a store's folder, if it is to be in one."""
    match scheme(url):
        case "":
            return await objects_folder.open(_folder(url), create=create, modes=modes)
        case "s3":
            try:
                from worldline.store.objects import s3_objects as objects_s3  # noqa: PLC0415 - an extra, loaded when asked for
            except ImportError as error:
                raise errors.BadUrl("S3 needs an extra: pip install 'worldline[s3]'") from error
            return await objects_s3.open(url, objects_s3.S3Settings.of(environment.variables()), env, patience)
        case "memory":
            return objects_memory.MemoryObjects(env)
        case "none":
            return NoObjects()
        case other:
            raise errors.BadUrl(f"no objects are kept at {other}://; use a folder or s3://bucket/prefix")


async def _open_cache(
    objects: str, env: envs.Env, settings: CacheSettings, wrapping: StoreWrapping | None
) -> blob_cache.BlobCache | None:
    """A cache of objects that are not on this machine, if a folder for it is named."""
    if scheme(objects) != "s3":
        return None
    chosen = settings if settings.folder else environment.cache(settings)
    if not chosen.folder:
        return None
    cipher = None if wrapping is None else wrapping.cache_cipher()
    return await blob_cache.open(Path(chosen.folder), env, bytes_max=chosen.bytes_max, cipher=cipher)


def scheme(url: str) -> str:
    """The scheme of a URL, or nothing for a path."""
    if not url:
        raise errors.BadUrl("an empty URL; name a folder, postgresql://... or memory://")
    found = _SCHEME.match(url)
    return found.group(1).lower() if found else ""


def _folder(path: str) -> Path:
    """A path that the file system can take. What was meant as a URL is not taken for one, and not repeated: it may have
    a password in it.
    """
    if _MEANT_AS_URL.match(path):
        raise errors.BadUrl(
            "not a URL: one begins with postgresql://, s3:// or memory://, as postgresql://user@host/name"
        )
    if "\0" in path or not _is_text(path):  # LMDB takes UTF-8 alone
        raise errors.BadUrl(f"{path!r} is no path of a folder")
    return Path(path)


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


class NoObjects:
    """Stands in where no object store was given: what fits the store itself works, more says what is missing."""

    async def put(self, name: str, body: bytes) -> None:
        raise errors.TooLarge(
            f"blob {name.rpartition('/')[2]}",
            size=len(body),
            limit=limits.CHUNKED_BYTES_MAX,
            advice=f"more needs an object store: {_NAME_OBJECTS}",
        )

    async def get(self, name: str) -> bytes:
        raise _no_objects(f"{name} cannot be read")

    async def list(self, prefix: str, *, after: str = "", count_max: int = 1000) -> list[object_store.ListedObject]:
        del prefix, after, count_max
        return []  # of what this process can see, nothing is to be collected

    async def delete(self, name: str) -> None:
        raise _no_objects(f"{name} cannot be deleted")

    async def close(self) -> None:
        pass


def bodies_of(store: Store) -> object_store.Objects | None:
    """The objects of a store; None if it was opened without."""
    kept = store.objects.inner if isinstance(store.objects, timed_store.TimedObjects) else store.objects
    return None if isinstance(kept, NoObjects) else store.objects


def folder_of_objects(bodies: object_store.Objects) -> objects_folder.FolderObjects | None:
    """The objects if they are files: only there can uploads of killed processes leave temporary files."""
    kept = bodies
    while isinstance(kept, object_store.AroundObjects):
        kept = kept.inner
    return kept if isinstance(kept, objects_folder.FolderObjects) else None


def sweep_uploads(bodies: object_store.Objects) -> Callable[[int, int], Awaitable[int]] | None:
    """What removes the temporary files that uploads of killed processes have left: those that were there unchanged for
    a period, at a time of the monotonic clock.
    """
    folder = folder_of_objects(bodies)
    return None if folder is None else folder.sweep_unchanged


def _no_objects(what: str) -> errors.StoreMissing:
    return errors.StoreMissing(f"{what}: no object store was given; {_NAME_OBJECTS}")


def _objects_named(url: str) -> str:
    """The objects that the environment names: for servers alone."""
    return "" if scheme(url) in ("", "memory") else environment.objects()


def _objects_beside(url: str) -> str:
    """The objects that a store brings, for what is too large for itself."""
    match scheme(url):
        case "":
            return str(Path(url) / OBJECTS_FOLDER)
        case "memory":
            return "memory://"
        case _:
            return "none://"
