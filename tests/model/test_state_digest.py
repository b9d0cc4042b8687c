from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from worldline.model import change, state_digest
from worldline.model.change import Row

keys = st.binary(max_size=300)
changes = st.lists(
    st.one_of(
        st.builds(change.drop, keys),
        st.builds(change.gone, keys),
        st.builds(lambda key, meaning, placement: change.put(key, Row(meaning, placement)), keys, keys, keys),
    ),
    max_size=5,
)


@given(st.binary(min_size=32, max_size=32), changes)
def test_what_the_chain_covers_does_not_depend_on_the_state_before(previous: bytes, made: list[change.Change]) -> None:
    assert state_digest.digests(previous, made)[1] == state_digest.changes_digest(made)


def test_golden_digests() -> None:
    """Worked out by hand from the definitions."""
    long = bytes(range(65))
    made = [change.drop(b"g"), change.gone(b"k"), change.put(b"l", Row(b"short")), change.put(b"m", Row(long, b"here"))]
    meant = b"\x89" + b"Ag\x01" + b"Ak\x00" + b"AlEshort" + b"Am\x02\x58\x20" + hashlib.sha256(long).digest()
    state, changed = b"\0\0\0\0\0\0\0\x05state", b"\0\0\0\0\0\0\0\x07changes"
    assert state_digest.digests(bytes(32), made)[0] == hashlib.sha256(state + bytes(32) + meant).digest()
    assert state_digest.changes_digest(made) == hashlib.sha256(changed + meant + b"\x82@Dhere").digest()
    assert state_digest.changes_digest(made[:2]) == hashlib.sha256(changed + b"\x84Ag\x01Ak\x00").digest()
    assert state_digest.digests(bytes(32), [])[0] == bytes(32)


def test_changes_that_differ_have_other_digests() -> None:
    """Also where a meaning looks like the digest of another, or like a row that is gone."""
    long = bytes(65)
    made = [
        [change.put(b"k", Row(long))],
        [change.put(b"k", Row(hashlib.sha256(long).digest()))],
        [change.put(b"k", Row(b"\x00"))],
        [change.put(b"k", Row(b""))],
        [change.gone(b"k")],
        [change.drop(b"k")],
        [change.put(b"k", Row(b"")), change.put(b"l", Row(b""))],
    ]
    assert len({state_digest.digests(bytes(32), each)[0] for each in made}) == len(made)
    placed = [Row(b"", b"p"), Row(b"")], [Row(b""), Row(b"", b"p")], [Row(b""), Row(b"")]
    digests = {state_digest.changes_digest([change.put(b"k", one), change.put(b"l", two)]) for one, two in placed}
    assert len(digests) == len(placed)
