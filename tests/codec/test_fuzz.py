"""Seeded fuzzing of everything that reads bytes: only `DecodeError` comes out, and what is accepted comes back exactly.

`canonical.decode` is also compared with the reference decoder: both accept and both refuse the same inputs, so a check
that is missing and a check too many both show. The option `fuzz_cases` sets the number of cases.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tests import options
from tests.codec import reference
from worldline.base import errors, limits
from worldline.codec import canonical, frame, tuples

CASES = options.number("fuzz_cases")
SEED = 20_240_601
CORPUS_SIZE = 400
HEADS = bytes.fromhex(
    "0017 18191a1b 1c1f 20383b 4041585b5f 606162787b7f 8081829798999a9b9f a0a1a2b7b8b9bbbf c0c2d8 e0f4f5f6f7f8f9fafb ff"
)
# In front of a case it makes the decoder take the path of long inputs: 100 bytes that look like heads of lists.
PAD = b"\x82" + reference.encode(b"\x80" * 100)
Generator = Callable[[random.Random, list[bytes]], bytes]


def fuzz(count: int, seed: int) -> Counter[str]:
    """Run `count` cases; says how many of them each reader accepted."""
    found: Counter[str] = Counter()
    for number, data in enumerate(cases(count, seed)):
        found["canonical"] += check_canonical(data)
        if number % 4 == 0:
            found["frame"] += check_frame(data)
            found["chunks"] += check_chunks(data)
            found["tuples"] += check_tuples(data)
    rng = random.Random(seed + 1)
    keys = [tuples.pack(random_key(rng)) for _ in range(CORPUS_SIZE)]
    frames = [frame.wrap(rng.randrange(4), frame.join(rng.sample(keys, 3))) for _ in range(CORPUS_SIZE)]
    for _ in range(count // 8):
        found["tuples"] += check_tuples(mutate(rng, keys))
        data = mutate(rng, frames)
        found["frame"] += check_frame(data)
        found["chunks"] += check_chunks(data[frame.OVERHEAD_BYTES :])
    return found


def check_canonical(data: bytes) -> bool:
    try:
        expected = reference.decode(data)
    except reference.Refused:
        expected = Ellipsis
    try:
        value = canonical.decode(data)
    except errors.DecodeError:
        assert expected is Ellipsis, f"refused a canonical value: {data.hex()}"
        return False
    assert expected is not Ellipsis, f"accepted what is not canonical: {data.hex()}"
    assert repr(value) == repr(expected), data.hex()
    assert canonical.encode(value) == data, data.hex()
    canonical._scan(data)  # the path of long inputs must not refuse what the path of short ones accepts
    return True


def check_tuples(data: bytes) -> bool:
    try:
        items = tuples.unpack(data)
    except errors.DecodeError:
        return False
    assert tuples.pack(items) == data, data.hex()
    return True


def check_frame(data: bytes) -> bool:
    kind = data[1] if len(data) > 1 else 0
    try:
        body = frame.unwrap(kind, data)
    except errors.DecodeError:
        return False
    assert frame.wrap(kind, body) == data, data.hex()
    return True


def check_chunks(data: bytes) -> bool:
    try:
        chunks, end = frame.take(data, 2, start=0)
    except errors.DecodeError:
        return False
    assert frame.join(chunks) == data[:end], data.hex()
    return True


def cases(count: int, seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    corpus = [reference.encode(random_value(rng, 4)) for _ in range(CORPUS_SIZE)]
    for _ in range(count):
        yield rng.choices(GENERATORS, WEIGHTS)[0](rng, corpus)


def random_bytes(rng: random.Random, _: list[bytes]) -> bytes:
    return rng.randbytes(rng.randrange(40))


def head_soup(rng: random.Random, _: list[bytes]) -> bytes:
    """Heads in a row, which are mostly containers that hold each other."""
    return bytes(rng.choices(HEADS, k=rng.randrange(1, 60)))


def spliced(rng: random.Random, corpus: list[bytes]) -> bytes:
    """A container head of some honest or dishonest count, and valid values after it."""
    count = rng.randrange(5)
    declared = max(0, count + rng.choice([0, 0, 0, 0, -1, 1]))
    if rng.random() < 0.5:
        return reference.head(4, declared) + b"".join(rng.choices(corpus, k=count))
    pairs = b"".join(reference.encode(random_text(rng)) + rng.choice(corpus) for _ in range(count))
    return reference.head(5, declared) + pairs


def length_bomb(rng: random.Random, corpus: list[bytes]) -> bytes:
    """Lengths and counts from all over the range, alone and nested, before some content."""
    parts = []
    for _ in range(rng.choice([1, 1, 2, 5, 40, 100])):
        size = 1 << rng.randrange(64)
        parts.append(reference.head(rng.choice([2, 3, 4, 4, 5]), min(2**64 - 1, size + rng.randrange(-1, 2))))
    return b"".join(parts) + rng.choice(corpus)


def deep_nest(rng: random.Random, corpus: list[bytes]) -> bytes:
    """Around the depth limit, closed properly, cut off, or never closed."""
    depth = rng.choice([1, 2, 60, 63, 64, 65, 66, 100, 1000])
    level = rng.choice([b"\x81", b"\xa1\x60", b"\xa1\x61k", b"\x82\x00", b"\x81\xa1\x60"])
    data = level * depth + rng.choice([b"\x80", b"\xa0", b"\x00", b"", rng.choice(corpus)])
    return data if rng.random() < 0.8 else data[: rng.randrange(len(data))]


def mutate(rng: random.Random, corpus: list[bytes]) -> bytes:
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.choice([0, 1, 1, 1, 1, 2, 3])):
        at = rng.randrange(len(data) + 1)
        step = rng.randrange(7)
        if step == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif step == 1 and at < len(data):
            data[at] = rng.randrange(256)
        elif step == 2:
            data[at:at] = bytes([rng.choice(HEADS)])
        elif step == 3:
            del data[at : at + rng.randrange(1, 4)]
        elif step == 4:
            del data[at:]
        elif step == 5:
            data[at:at] = data[at : at + rng.randrange(1, 12)]
        else:
            data[at : at + 1] = rng.choice(corpus)
    return bytes(data)


def padded(rng: random.Random, corpus: list[bytes]) -> bytes:
    return PAD + rng.choice([head_soup, spliced, length_bomb, deep_nest, mutate])(rng, corpus)


GENERATORS: list[Generator] = [random_bytes, head_soup, spliced, length_bomb, deep_nest, mutate, padded]
WEIGHTS = [13, 13, 10, 6, 3, 40, 15]


def random_value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(10 if depth else 7)
    if kind < 2:
        return rng.getrandbits(rng.randrange(1, 65))
    if kind == 2:
        return -1 - rng.getrandbits(rng.randrange(1, 65))
    if kind == 3:
        return random_text(rng)
    if kind == 4:
        return rng.randbytes(rng.choice([0, 1, 16, 23, 24, 32, 255, 256]))
    if kind == 5:
        return rng.choice([None, False, True])
    if kind == 6:
        return rng.choice([0.0, -0.0, 1.5, rng.uniform(-1e9, 1e9), 5e-324])
    if kind == 7:
        return {random_text(rng): random_value(rng, depth - 1) for _ in range(rng.randrange(6))}
    return [random_value(rng, depth - 1) for _ in range(rng.choice([0, 1, 2, 5, 25]))]


def random_text(rng: random.Random) -> str:
    return "".join(rng.choices("ab\x00\u00e9\u6c34\uffff\U00010000", k=rng.randrange(6)))


def random_key(rng: random.Random, depth: int = 2) -> tuple[tuples.Item, ...]:
    makers: list[Callable[[], tuples.Item]] = [
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: rng.choice([1, -1]) * rng.getrandbits(rng.randrange(1, 65)),
        lambda: random_text(rng),
        lambda: bytes(rng.choices(b"\x00\xff\x01a", k=rng.randrange(6))),
        lambda: tuples.Uuid(rng.randbytes(16)),
        lambda: tuples.Stamp12(rng.randbytes(12)),
        lambda: random_key(rng, depth - 1) if depth else (),
    ]
    return tuple(rng.choice(makers)() for _ in range(rng.randrange(6)))


def test_fuzz() -> None:
    found = fuzz(CASES, SEED)
    # A campaign that accepts nothing, or everything, checks nothing.
    assert CASES // 20 < found["canonical"] < CASES * 3 // 4
    for reader in ("tuples", "frame", "chunks"):
        assert CASES // 200 < found[reader] < CASES // 3


def test_the_campaign_is_the_same_every_time() -> None:
    assert list(cases(300, 7)) == list(cases(300, 7))
    assert list(cases(300, 7)) != list(cases(300, 8))
    assert fuzz(400, 7) == fuzz(400, 7)


def test_bombs_of_the_campaign_stay_small() -> None:
    """The generators that claim more than there is, under a count of every allocation."""
    rng = random.Random(SEED)
    corpus = [reference.encode(random_value(rng, 4)) for _ in range(CORPUS_SIZE)]
    bombs = [maker(rng, corpus) for maker in (head_soup, length_bomb, deep_nest) for _ in range(700)]
    bombs += [bomb + struct.pack(">Q", 0) * rng.randrange(1, 9_000) for bomb in rng.sample(bombs, 200)]
    tracemalloc.start()
    try:
        for data in bombs:
            for check in (check_canonical_alone, check_tuples, check_frame, check_chunks):
                check(data)
        assert tracemalloc.get_traced_memory()[1] < 10 * limits.MIB
    finally:
        tracemalloc.stop()


def check_canonical_alone(data: bytes) -> bool:
    try:
        canonical.decode(data)
    except errors.DecodeError:
        return False
    return True
