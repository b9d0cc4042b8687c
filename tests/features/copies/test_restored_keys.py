"""The keys of a backup as they are written into another store: which stamps it must go on above."""

from __future__ import annotations

import pytest

from tests.keys.golden_keys import KEYS
from tests.keys.samples import AT, STAMP, UNIVERSE
from worldline.base import limits
from worldline.features.copies import restore_batches
from worldline.keys import inbox as inbox_keys
from worldline.keys import keyspace_table, space
from worldline.keys.keyspace_table import InBackup, Stamped

PREFIX = len(space.universe(UNIVERSE))
SEEN = inbox_keys.seen_key(AT, "first")[PREFIX:]
HANDED_OVER = b"\x17" * 8 + b"\xff" * 4
COPIED = (InBackup.COPIED, InBackup.REWRITTEN)


def test_a_stamp_that_a_key_ends_in_is_found() -> None:
    """In the whole keys of every keyspace that a backup has."""
    stamped = []
    for name, build, _ in KEYS:
        key = build()
        row = keyspace_table.of(key)
        if (
            row is None
            or row.backup not in COPIED
            or name.endswith("prefix")
            or not key.startswith(space.universe(UNIVERSE))
        ):
            continue
        ends = row.stamped in (Stamped.APPENDED, Stamped.KEPT)
        assert restore_batches.stamp_of(key[PREFIX:]) == (STAMP if ends else None), name
        stamped += [name] if ends else []
    assert sorted(stamped) == ["inbox.dead_key", "inbox.item_key", "quota_keyspace.log_key", "universes.grant_log_key"]


def test_a_stamp_that_was_made_inside_of_a_process_is_none_of_an_engine() -> None:
    assert restore_batches.stamp_of(inbox_keys.dead_key(AT, HANDED_OVER)[PREFIX:]) is None
    assert restore_batches.stamp_in(SEEN, b"record" + HANDED_OVER) is None


@pytest.mark.parametrize(
    ("stamp", "found"),
    [
        (b"\x00" * 4 + STAMP[4:], True),
        (bytes(limits.STAMP_BYTES), True),
        (b"\x00" + b"\xff" * 10 + b"\x00", True),
        (b"\x01" + bytes(11), False),
        (b"\x3f" + b"\xff" * 10 + b"\x00", False),
    ],
)
def test_the_stamp_of_an_input_that_was_taken_is_found_unless_it_leaves_no_room(stamp: bytes, found: bool) -> None:
    assert restore_batches.stamp_in(SEEN, b"record" + stamp) == (stamp if found else None)
    assert restore_batches.stamp_in(inbox_keys.item_key(AT, STAMP)[PREFIX:], b"record" + stamp) is None
