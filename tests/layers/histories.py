"""Steps with changes, as they are committed and read back."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from hypothesis import strategies as st

from tests.layers import scenario
from worldline.base import limits
from worldline.keys import journal as keys
from worldline.layers import journal as journals
from worldline.layers import step_changes as stored_changes
from worldline.layers.history import history_line, step_reader
from worldline.model import change as model
from worldline.model import ids, journal, state_digest
from worldline.model.change import Change, Row
from worldline.model.rows import Rows
from worldline.store import kv

AT = scenario.address()
LARGE = limits.INLINE_BYTES_MAX + 1

short_keys = st.binary(min_size=1, max_size=3).map(lambda raw: bytes(each % 3 for each in raw))


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that do not compress."""
    return hashlib.shake_128(seed.to_bytes(4, "big")).digest(size)


def drafts(*payloads: bytes) -> list[journal.EntryDraft]:
    return [journal.EntryDraft(journal.Kind.EVENT_RAISED, each) for each in payloads or (b"input",)]


def address(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def forms(stored: bytes) -> list[int]:
    return [each[0] for each in stored_changes.decode(stored) if isinstance(each, list)]


class History:
    """Steps with changes, as they are committed, and what a reader must find."""

    def __init__(self, at: ids.Address = AT, *, time_us: int = 5) -> None:
        self.at = at
        self.time_us = time_us
        self.head = journal.GENESIS
        self.rows = Rows()
        self.blobs: dict[bytes, bytes] = {}
        self.items: list[tuple[bytes, bytes]] = []
        self.book = stored_changes.Book()
        self.steps: list[tuple[list[journal.JournalEntry], list[Change]]] = []

    def seal(self, payloads: Sequence[bytes], changes: Sequence[Change]) -> journals.SealedSteps:
        state = state_digest.digests(self.head.state, changes)[0]
        sealed = journals.seal(self.head, drafts(*payloads), changes, state=state, time_us=self.time_us, book=self.book)
        self.head = sealed.after
        self.rows.apply(changes)
        self.blobs |= {address(each): each for each in sealed.large}
        self.blobs |= {address(each): each for each in payloads if len(each) > limits.INLINE_BYTES_MAX}
        self.steps.append((sealed.entries, list(changes)))
        return sealed

    def commit(self, *steps: tuple[Sequence[bytes], Sequence[Change]]) -> kv.Batch:
        before = self.head
        many = [self.seal(*each) for each in steps]
        together = journals.SealedSteps(
            before,
            [entry for each in many for entry in each.entries],
            [data for each in many for data in each.data],
            self.head,
            [stored for each in many for stored in each.changes],
        )
        batch = kv.Batch()
        journals.append(batch, self.at, together, before_raw=journals.pack_head(before))
        kv.check(batch)
        self.items += sorted((key, put.value) for key, put in batch.puts.items() if key != keys.head_key(self.at))
        assert self.items == sorted(self.items)
        return batch

    def read(self, *, page: int = 1_000) -> tuple[journal.Head, Rows, list[step_reader.StoredStep]]:
        """What a reader makes of the items, so many at a time."""
        return read(self.items, self.blobs, page=page)


def read(
    items: list[tuple[bytes, bytes]], blobs: dict[bytes, bytes], *, page: int = 1_000
) -> tuple[journal.Head, Rows, list[step_reader.StoredStep]]:
    reader = step_reader.StepReader(history_line.HistoryLine(AT), above=0)
    steps: list[step_reader.StoredStep] = []
    while True:
        wanted = reader.wanted()
        found = [each for each in items if wanted.begin <= each[0] < wanted.end][:page]
        if not found:
            break
        steps += reader.take(found)
    reader.check_end()
    steps = [
        each.with_changes(blobs[step_reader.needed(each)[0]]) if step_reader.is_apart(each) else each for each in steps
    ]
    needed = {of: blobs[of] for each in steps for of in step_reader.needed(each)}
    rows = Rows()
    return step_reader.fold(journal.GENESIS, steps, rows, needed), rows, steps


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Random steps: small and large rows, grown ones, shared payloads, rows and groups that go."""
    made = History()
    sizes = st.sampled_from([0, 3, 30, 200, 5_000, 17_000, 70_000])
    for _ in range(draw(st.integers(1, 4))):
        steps: list[tuple[list[bytes], list[Change]]] = []
        known = {key: row.meaning for key, row in made.rows.items()}
        for _ in range(draw(st.integers(1, 3))):
            payloads = [noise(draw(sizes), draw(st.integers(0, 9))) for _ in range(draw(st.integers(1, 3)))]
            groups = draw(st.lists(short_keys, max_size=1, unique=True))
            changes = [model.drop(group) for group in groups]
            for key in sorted(draw(st.lists(short_keys, max_size=4, unique=True))):
                what = draw(st.integers(0, 4))
                base = known.get(key)
                if what == 0:
                    changes.append(model.gone(key))
                    known.pop(key, None)
                    continue
                placement = draw(st.binary(max_size=3))
                if what == 1:
                    slot = payloads[draw(st.integers(0, len(payloads) - 1))]
                    row = Row(b"<" + slot + b">", placement)
                    changes.append(model.put(key, row, slot=(1, 1 + len(slot)), base=base))
                elif what == 2 and base is not None:
                    row = Row(base + noise(draw(st.integers(0, 50)), draw(st.integers(0, 9))), placement)
                    changes.append(model.put(key, row, base=base))
                else:
                    size = draw(sizes)
                    row = Row(noise(size, draw(st.integers(0, 9))), placement)
                    changes.append(model.put(key, row, slot=(0, size), base=base))
                known[key] = row.meaning
            known = {
                key: meaning
                for key, meaning in known.items()
                if not any(key.startswith(group) for group in groups)
                or any(each.key == key and not each.is_group for each in changes)
            }
            steps.append((payloads, changes))
        made.commit(*steps)
    return made
