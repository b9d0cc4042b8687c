"""The files of backups in an object store: a folder, or a bucket.

::

    backups/ID                      the manifest of a backup: put last, it makes it one
    keys/ID/UNIVERSE/NUMBER         the keys of a universe
    keys/ID/UNIVERSE/aSHARD         the addresses of its blobs
    keys/ID/ledger                  what was erased before
    blobs/UNIVERSE/SHARD/SHA256     blobs, for any number of backups; named by the sha256 of the file
    index/UNIVERSE/SHARD/SHA256     the addresses of the blobs in that file: put behind it, it makes them known

All are packs (`features/copies/pack_file.py`). Names are made of ids, numbers and digests, never of what a file says.
Each backup is whole: it names all files that it needs, those of earlier backups too. A blob is put once, however many
backups have it. Files that no backup names are left by a process that was killed: the next one uses its blobs, or
prunes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from worldline.base import errors, limits
from worldline.codec import digest, structs
from worldline.features.copies import pack_file
from worldline.features.copies.backup_records import BackedUniverse, BackupFile, BackupHead, FileKind
from worldline.features.copies.copy_bounds import CopyBounds
from worldline.features.erasure.records import LedgerEntry
from worldline.model import ids
from worldline.store.objects import objects_interface as objects

HEAD, UNIVERSE, FILE = 1, 2, 3  # records of a manifest
KEY, ADDRESSES, ERASURE = 1, 2, 3  # records of keys, of addresses and of a ledger
NO_UNIVERSE = bytes(limits.ID_BYTES)
_ID = re.compile(r"[0-9a-f]{32}")
PAGE = 1_000
_KINDS = {
    FileKind.KEYS: pack_file.PackKind.KEYS,
    FileKind.ADDRESSES: pack_file.PackKind.KEYS,
    FileKind.BLOBS: pack_file.PackKind.BLOBS,
    FileKind.LEDGER: pack_file.PackKind.KEYS,
}


class Manifest(msgspec.Struct, frozen=True):
    """A backup: what it is of, and all its files in the order they are restored in."""

    head: BackupHead
    universes: list[BackedUniverse]
    files: list[BackupFile]

    @property
    def id(self) -> str:
        return self.head.id.hex()

    @property
    def size(self) -> int:
        return sum(each.size for each in self.files)

    def of(self, universe: bytes, kind: FileKind, number: int | None = None) -> list[BackupFile]:
        return [
            each
            for each in self.files
            if each.universe == universe and each.kind is kind and number in (None, each.number)
        ]


class BackupFolder:
    """Backups of one store. Every body that is read is checked against what names it."""

    def __init__(self, bodies: objects.Objects, shown: str) -> None:
        self._bodies = bodies
        self.shown = shown

    async def ids(self) -> list[str]:
        """All backups, the oldest first: their ids are ordered by time."""
        # What is named otherwise is no backup: a folder may have files of others.
        return [name.partition("/")[2] for name in await self.names("backups/") if _ID.fullmatch(name[8:])]

    async def manifest(self, id: str) -> Manifest:
        if not _ID.fullmatch(id):
            raise errors.BadInput(f"{id!r} is no backup: an id has 32 hex digits; `worldline backup list` shows them")
        with bad(f"the manifest of backup {id}"):
            try:
                data = await self._bodies.get(f"backups/{id}")
            except errors.NotFound as error:
                raise errors.NotFound(f"no backup {id} in {self.shown}") from error
            found = _manifest(data)
            # A manifest that was copied under another name is not that backup.
            if found.id != id:
                raise errors.DecodeError(f"it is that of backup {found.id}")
            return found

    async def latest(self) -> Manifest:
        found = await self.ids()
        if not found:
            raise errors.NotFound(f"no backup in {self.shown}")
        return await self.manifest(found[-1])

    async def put_manifest(self, manifest: Manifest) -> int:
        packer = pack_file.Packer(pack_file.PackKind.MANIFEST)
        data = [packer.add(HEAD, structs.encode(manifest.head))]
        data += [packer.add(UNIVERSE, structs.encode(each)) for each in manifest.universes]
        data += [packer.add(FILE, structs.encode(each)) for each in manifest.files]
        # The manifest comes last, and in one put: before it there is no backup, behind it a whole one.
        await self._bodies.put(f"backups/{manifest.id}", b"".join(data) + packer.finish())
        return packer.written

    async def put(self, file: BackupFile, data: bytes, *, backup: str) -> None:
        """A file. One of the same name has the same bytes: what a killed process has put is not put again."""
        await self._put(_name(file, backup), data)

    async def put_index(self, file: BackupFile, addresses: Sequence[bytes]) -> None:
        """The addresses of the blobs in a file."""
        packer = pack_file.Packer(pack_file.PackKind.INDEX)
        data = [packer.add(FILE, structs.encode(file)), *_addresses(packer, addresses), packer.finish()]
        await self._put(_index_name(file), b"".join(data))

    async def index(self, universe: bytes, shard: int) -> dict[bytes, BackupFile]:
        """Where the blobs of a shard are that were backed up before, and still are."""
        found: dict[bytes, BackupFile] = {}
        there = dict.fromkeys(await self.names(f"blobs/{universe.hex()}/{shard:x}/"))
        for name in await self.names(f"index/{universe.hex()}/{shard:x}/"):
            with bad(f"the file {name}, which can be deleted: its blobs are copied anew then"):
                records = pack_file.of_bytes(pack_file.PackKind.INDEX, await self._bodies.get(name))
                _, data = next(records, (0, b""))
                file = structs.decode(BackupFile, data)
                if _index_name(file) != name:
                    raise errors.DecodeError("it is that of another file")
                # An index whose file is gone: its blobs are copied again.
                if _name(file, "") not in there:
                    continue
                for address in addresses_of(records):
                    found[address] = file
        return found

    async def records(
        self, file: BackupFile, *, backup: str, bounds: CopyBounds | None = None
    ) -> Iterator[pack_file.Record]:
        """What a file holds. `BadCopy` if it is not there, or not what the manifest says. `bounds` are told of it."""
        name = _name(file, backup)
        with bad(f"the file {name}"):
            try:
                data = await self._bodies.get(name)
            except errors.NotFound as error:
                raise errors.BadCopy(f"{self.shown}: the file {name} is missing") from error
            digest.check(data, file.digest, "its bytes")
            if len(data) != file.size:
                raise errors.DecodeError(f"it has {len(data)} bytes; the manifest says {file.size}")
            found = pack_file.of_bytes(_KINDS[file.kind], data)
            return found if bounds is None else bounded(found, bounds)

    async def ledger(self, manifest: Manifest) -> list[LedgerEntry]:
        """What was erased before the backup was made."""
        found: list[LedgerEntry] = []
        for file in manifest.of(NO_UNIVERSE, FileKind.LEDGER):
            with bad("the ledger of erasures"):
                for tag, data in await self.records(file, backup=manifest.id):
                    if tag != ERASURE:
                        raise errors.DecodeError("not an erasure")
                    found.append(structs.decode(LedgerEntry, data))
        return found

    async def names(self, prefix: str) -> list[str]:
        found: list[str] = []
        while True:
            page = await self._bodies.list(prefix, after=found[-1] if found else "", count_max=PAGE)
            found += [each.name for each in page]
            if len(page) < PAGE:
                return found

    async def delete(self, name: str) -> None:
        await self._bodies.delete(name)

    async def close(self) -> None:
        await self._bodies.close()

    async def _put(self, name: str, data: bytes) -> None:
        try:
            await self._bodies.put(name, data)
        except errors.Exists:
            # The same bytes under the same name: put by a process that was killed.
            if await self._bodies.get(name) != data:
                await self._bodies.delete(name)  # by a process that was killed, and is damaged
                await self._bodies.put(name, data)


def bounded(records: Iterator[pack_file.Record], bounds: CopyBounds) -> Iterator[pack_file.Record]:
    """The same records, each counted."""
    for tag, data in records:
        bounds.unpack(len(data))
        yield tag, data


def addresses_of(records: Iterator[pack_file.Record]) -> Iterator[bytes]:
    size = limits.DIGEST_BYTES
    for tag, data in records:
        if tag != ADDRESSES or len(data) % size:
            raise errors.DecodeError("not a list of addresses")
        yield from (data[start : start + size] for start in range(0, len(data), size))


def add_addresses(packer: pack_file.Packer, addresses: Sequence[bytes]) -> bytes:
    return b"".join(_addresses(packer, addresses))


class bad:  # noqa: N801 - read as a statement
    """Around reading a file of a backup: what is wrong with it is a `BadCopy` that names it."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # Besides what says that it is damaged: what code may raise that decodes hostile bytes.
        faults = (errors.Corrupt, errors.BatchRefused, ValueError, LookupError, ArithmeticError)
        if isinstance(error, faults) and not isinstance(error, errors.BadCopy):
            raise errors.BadCopy(f"{self._what}: {error}") from error


def _addresses(packer: pack_file.Packer, addresses: Sequence[bytes]) -> list[bytes]:
    many = limits.PIECE_BYTES // limits.DIGEST_BYTES
    return [
        packer.add(ADDRESSES, b"".join(addresses[start : start + many])) for start in range(0, len(addresses), many)
    ]


def _manifest(data: bytes) -> Manifest:
    head: BackupHead | None = None
    universes: list[BackedUniverse] = []
    files: list[BackupFile] = []
    # A manifest is kept in memory whole, so what it unpacks to has a bound.
    limit = CopyBounds("the manifest of the backup", len(data))
    for tag, record in bounded(pack_file.of_bytes(pack_file.PackKind.MANIFEST, data), limit):
        if (head is None) is not (tag == HEAD):
            raise errors.DecodeError("it does not begin with what it is")
        if tag == HEAD:
            head = structs.decode(BackupHead, record)
        elif tag == UNIVERSE:
            universes.append(structs.decode(BackedUniverse, record))
        else:
            files.append(structs.decode(BackupFile, record))
    if head is None:
        raise errors.DecodeError("it is empty")
    known = dict.fromkeys(each.id for each in universes)
    for each in universes:
        _check_name(each.name)
    of_universes = [each for each in files if each.kind is not FileKind.LEDGER]
    if len(known) != len(universes) or any(each.universe not in known for each in of_universes):
        raise errors.DecodeError("its universes and files do not go together")
    return Manifest(head, universes, files)


def _check_name(name: str) -> None:
    """It is shown to people and stored, so it must be what people may choose."""
    try:
        ids.check_name(name, "a universe's name")
    except errors.BadInput as error:
        raise errors.DecodeError(str(error)) from error


def _name(file: BackupFile, backup: str) -> str:
    universe = file.universe.hex()
    match file.kind:
        case FileKind.KEYS:
            return f"keys/{backup}/{universe}/{file.number:08d}"
        case FileKind.ADDRESSES:
            return f"keys/{backup}/{universe}/a{file.number:x}"
        case FileKind.LEDGER:
            return f"keys/{backup}/ledger"
        case _:
            return f"blobs/{universe}/{file.number:x}/{file.digest.hex()}"


def _index_name(file: BackupFile) -> str:
    return f"index/{file.universe.hex()}/{file.number:x}/{file.digest.hex()}"
