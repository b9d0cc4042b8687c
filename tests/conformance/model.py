"""What a store is, in as few lines as possible: a dict, and the rules of a batch said a second time.

Nothing here is shared with `worldline.store`, except the shape of a batch, so that a mistake in one shows in the other.
Stamps are the engine's to choose: the model takes them from the `Ok` it is told of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from worldline.store import kv


class Model:
    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def failed(self, batch: kv.Batch) -> tuple[tuple[bytes, bytes | None], ...]:
        """The expectations that do not hold, with what is there."""
        wrong = [key for key in sorted(batch.expects) if self.values.get(key) != batch.expects[key]]
        return tuple((key, self.values.get(key)) for key in wrong)

    def apply(self, batch: kv.Batch, stamps: Sequence[bytes]) -> None:
        gone = {key for key in self.values if key in batch.deletes or in_some_range(batch, key)}
        kept = {key: value for key, value in self.values.items() if key not in gone}
        for key, put in batch.puts.items():
            kept[key] = put.value if put.stamp is None else put.value + stamps[put.stamp]
        for key, delta in batch.counts.items():
            before = int.from_bytes(kept.get(key, b""), "little", signed=True)
            kept[key] = ((before + delta) & (2**64 - 1)).to_bytes(8, "little")
        for append, stamp in zip(batch.appends, stamps, strict=True):
            assert append.prefix + stamp not in kept, "a stamp came twice"
            kept[append.prefix + stamp] = append.value
        self.values = kept

    def page(self, request: kv.Range) -> tuple[list[tuple[bytes, bytes]], bool]:
        """The items of a page, and whether there are more."""
        keys = sorted((key for key in self.values if request.begin <= key < request.end), reverse=request.reverse)
        sizes = [len(key) + len(self.values[key]) for key in keys]
        count = 0
        while count < min(len(keys), request.count_max) and (not count or sum(sizes[: count + 1]) <= request.bytes_max):
            count += 1
        return [(key, self.values[key]) for key in keys[:count]], count < len(keys)


def in_some_range(batch: kv.Batch, key: bytes) -> bool:
    return any(begin <= key < end for begin, end in batch.ranges)


def broken_rules(batch: kv.Batch) -> Iterator[str]:
    """Why a batch must be refused; sizes are left to `test_limits`."""
    if any(begin >= end for begin, end in batch.ranges):
        yield "an empty range"
    if any(value is None and key not in batch.puts for key, value in batch.expects.items()):
        yield "absent is expected of a key that is not put"
    if any(in_some_range(batch, key) for key in [*batch.puts, *batch.deletes, *batch.counts]):
        yield "a write in a deleted range"
    if any(_meet(batch, append.prefix) for append in batch.appends):
        yield "an append in a deleted range"
    if any(not -(2**63) <= delta < 2**63 for delta in batch.counts.values()):
        yield "a delta of more than 64 bits"
    if not has_guard(batch):
        yield "no guard"


def has_guard(batch: kv.Batch) -> bool:
    return any(_guards(batch, key) for key in batch.expects)


def _meet(batch: kv.Batch, prefix: bytes) -> bool:
    """Whether a range and the keys that begin with the prefix may have one in common."""
    return any(begin.startswith(prefix) or begin <= prefix < end for begin, end in batch.ranges)


def _guards(batch: kv.Batch, key: bytes) -> bool:
    expected = batch.expects[key]
    if expected is None:
        return True
    if key in batch.puts:
        return batch.puts[key].stamp is not None or batch.puts[key].value != expected
    return key in batch.deletes or in_some_range(batch, key)
