"""The ledger of erasures as a file beside the store: one line of JSON for each erasure, without personal data.

A store that is lost takes its ledger along, and a backup has that of its own time. So the file is what says which of
the things in a backup were erased later: keep it where neither the store nor its backups are. With `WORLDLINE_LEDGER`,
every erasure by this package writes it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from worldline.base import errors, limits, private_files
from worldline.features.erasure import ledger_entries
from worldline.features.erasure.records import ErasedKind, LedgerEntry
from worldline.runtime import store_opening

_HEAD = "worldline-ledger-1"


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    erased: str
    universe: str
    world: str
    subject: str
    values: list[str]
    time_us: int


def write(path: Path, entries: Sequence[LedgerEntry]) -> None:
    """Replace the file, whole or not at all. Only its owner may read it."""
    lines = [msgspec.json.encode(_Head(_HEAD))]
    for each in entries:
        values = [value.hex() for value in each.values]
        line = _Line(
            each.kind.name.lower(), each.universe.hex(), each.world.hex(), each.subject.hex(), values, each.time_us
        )
        lines.append(msgspec.json.encode(line))
    private_files.write(path, b"\n".join(lines) + b"\n", replace=True)


def read(path: Path) -> list[LedgerEntry]:
    """`BadCopy` names the first line that is wrong: a ledger that lacks a part would bring back what was erased."""
    found: list[LedgerEntry] = []
    number = 1
    try:
        with path.open("rb") as opened:
            head = opened.readline(limits.LEDGER_LINE_BYTES_MAX)
            if msgspec.json.decode(head, type=_Head).format != _HEAD:
                raise errors.BadCopy(f"{path} is not a ledger of this release")
            # A bounded line: a file that is no ledger must not fill the memory.
            while line := opened.readline(limits.LEDGER_LINE_BYTES_MAX):
                number += 1
                if not line.endswith(b"\n"):
                    raise errors.BadCopy(f"{path}: line {number} is cut off, or too long")
                found.append(_entry(msgspec.json.decode(line, type=_Line)))
    except OSError as error:
        raise errors.BadInput(f"cannot read the ledger {path}: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError, KeyError, RecursionError) as error:
        raise errors.BadCopy(f"{path}: line {number} is not one of a ledger: {error}") from error
    return found


def _known(path: Path) -> list[LedgerEntry]:
    return read(path) if path.exists() else []


def _entry(line: _Line) -> LedgerEntry:
    return LedgerEntry(
        ErasedKind[line.erased.upper()],
        bytes.fromhex(line.universe),
        bytes.fromhex(line.world),
        bytes.fromhex(line.subject),
        [bytes.fromhex(each) for each in line.values],
        line.time_us,
    )


async def export(store: store_opening.Store, path: Path) -> int:
    """The store's ledger, with what the file has besides. Returns how many entries there are now."""
    # Also entries that this store does not have: the file may be of a store that was lost.
    every = ledger_entries.merged(await ledger_entries.read_all(store.engine), _known(path))
    write(path, every)
    return len(every)


async def keep(store: store_opening.Store) -> None:
    """After an erasure: write the file that the environment names, if it does."""
    if store.ledger:
        await export(store, Path(store.ledger))
