"""Personal values outside of the kernel: of clients that send and read them, and of effects that get and return them.

Values are written before what refers to them, in a commit of their own: a reference to a value is never without it, and
a value that nothing refers to, because a process died between the two, goes with the next erasure of its subject.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from worldline.base import env as envs
from worldline.base import errors, failures, limits
from worldline.codec import canonical, digest
from worldline.codec import sealed_token as tokens
from worldline.codec.sealed_token import Token
from worldline.kernel.execution.step_desk import TOO_MUCH
from worldline.kernel.personal import personal_value
from worldline.layers import personal_records
from worldline.layers.history import history_line
from worldline.model import ids
from worldline.model.personal_records import New, PersonalRecord
from worldline.store import kv, transact

T = TypeVar("T")

Opened = Mapping[bytes, bytes | None]  # tokens, and what they stand for; None: erased

_NOTHING: Opened = {}


class CollectingDesk:
    """A desk that opens what was read beforehand, and collects what is sealed. `seed`: what values are numbered by."""

    opens_at_once = True

    def __init__(
        self,
        env: envs.Env,
        seed: bytes,
        opened: Opened = _NOTHING,
        subjects: Sequence[personal_records.SubjectRecord] = (),
    ) -> None:
        self._env = env
        self._seed = seed
        self._opened = opened
        self.subjects = subjects  # as they were when these values were read
        self.new: list[New] = []
        self._bytes = 0

    def seal(self, subject: bytes, data: bytes) -> bytes:
        number = len(self.new).to_bytes(4, "big")
        value = digest.hash_parts(b"personal", self._seed, number)[: limits.ID_BYTES]
        kept = PersonalRecord(self._env.random_bytes(tokens.SALT_BYTES), data)
        self.new.append(New(subject, value, kept))
        self._bytes += len(data)
        if self._bytes > limits.PERSONAL_STEP_BYTES_MAX or len(self.new) > limits.PERSONAL_STEP_MAX:
            raise errors.ValueTooLarge(TOO_MUCH)
        return token_of(self.new[-1])

    def open(self, token: bytes) -> bytes | None:
        return self._opened.get(token)

    def at(self, work: Callable[[], T]) -> T:
        """Do something that writes or reads values, at this desk. It must not wait for anything."""
        return written_at(self, work)


class LookingDesk:
    """A desk that says whether anything was sealed at it. It keeps nothing, draws nothing and reads no store."""

    opens_at_once = True

    def __init__(self) -> None:
        self.has_sealed = False

    def seal(self, subject: bytes, data: bytes) -> bytes:
        self.has_sealed = True
        return tokens.seal(subject, bytes(limits.ID_BYTES), salt=bytes(tokens.SALT_BYTES), data=data).pack()

    def open(self, token: bytes) -> None:  # noqa: ARG002
        return None


def written_at(desk: personal_value.Desk, work: Callable[[], T]) -> T:
    """Do something that writes or reads values, at a desk. It must not wait for anything: the desk is the thread's."""
    outside = personal_value.desk.set(desk)
    try:
        return work()
    finally:
        personal_value.desk.reset(outside)


def token_of(new: New) -> bytes:
    return tokens.seal(new.subject, new.value, salt=new.kept.salt, data=new.kept.data).pack()


async def root_of(engine: kv.Engine, at: ids.Address) -> ids.Address:
    """The world that the lineage of this one began with."""
    return personal_records.root_of(history_line.decode(at, (await engine.read(history_line.get(at))).value(0)))


async def keep(
    engine: kv.Engine,
    env: envs.Env,
    root: ids.Address,
    new: Sequence[New],
    since: Sequence[personal_records.SubjectRecord] = (),
) -> dict[bytes, bytes] | None:
    """Write values that nothing refers to yet. Those that are there already, under the same numbers, stay: returned are
    the tokens to replace then, each with the one of the value's first salt; None if others are there. `since`: subjects
    as they were read before; `Erased` if something of them was erased since.
    """
    known = {each.subject: each for each in since}
    wanted = list(dict.fromkeys([*known, *(each.subject for each in new)]))

    async def attempt() -> (
        transact.NothingToWrite[dict[bytes, bytes] | None] | transact.Write[dict[bytes, bytes] | None]
    ):
        values = [personal_records.get(root, each.subject, each.value) for each in new]
        read = await engine.read(*values, *(personal_records.get_subject(root, each) for each in wanted))
        found = [
            personal_records.SubjectRecord(each, read.value(len(new) + index)) for index, each in enumerate(wanted)
        ]
        # The record of a subject changes when something of it is erased.
        if any(known.get(each.subject, each) != each for each in found):
            raise failures.Erased("a personal value was erased while something was made of it")
        replaced: dict[bytes, bytes] = {}
        missing: list[New] = []
        for index, each in enumerate(new):
            kept = personal_records.decode(read.value(index))
            if kept is None:
                missing.append(each)
            # Never overwritten: something may refer to what is there.
            elif kept.data != each.kept.data:
                return transact.NothingToWrite(None)
            else:
                replaced[token_of(each)] = token_of(New(each.subject, each.value, kept))
        if not missing:
            return transact.NothingToWrite(replaced)
        batch = kv.Batch()
        personal_records.keep(batch, root, missing)
        personal_records.unchanged(batch, root, found)
        return transact.Write(batch, lambda _: replaced)

    return await transact.run(engine, env, attempt)


async def subjects_of(engine: kv.Engine, root: ids.Address, new: Sequence[New]) -> list[personal_records.SubjectRecord]:
    """Whose values these are, as they are now."""
    wanted = list(dict.fromkeys(each.subject for each in new))
    read = await engine.read(*(personal_records.get_subject(root, each) for each in wanted))
    return [personal_records.SubjectRecord(each, read.value(index)) for index, each in enumerate(wanted)]


async def drop(engine: kv.Engine, env: envs.Env, root: ids.Address, new: Sequence[New]) -> None:
    """Remove values that were written, and that nothing refers to: what they were for was refused."""

    async def attempt() -> transact.NothingToWrite[None] | transact.Write[None]:
        read = await engine.read(*(personal_records.get(root, each.subject, each.value) for each in new))
        # Compared with the salt: what another call has written under this number stays.
        mine = [each for index, each in enumerate(new) if personal_records.decode(read.value(index)) == each.kept]
        if not mine:
            return transact.NothingToWrite(None)
        batch = kv.Batch()
        personal_records.drop(batch, root, mine)
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, env, attempt)


async def read(
    engine: kv.Engine, root: ids.Address, tokens_read: Sequence[Token]
) -> tuple[dict[bytes, bytes | None], list[personal_records.SubjectRecord]]:
    """The values of these tokens, each checked, and their subjects, as they were not later than the values."""
    opened: dict[bytes, bytes | None] = {}
    subjects: dict[bytes, personal_records.SubjectRecord] = {}
    for start in range(0, len(tokens_read), limits.PERSONAL_PAGE):
        part = tokens_read[start : start + limits.PERSONAL_PAGE]
        wanted = [each for each in dict.fromkeys(each.subject for each in part) if each not in subjects]
        requests = [personal_records.get(root, each.subject, each.value) for each in part]
        answers = await engine.read(*requests, *(personal_records.get_subject(root, each) for each in wanted))
        opened |= {each.pack(): personal_records.opened(each, answers.value(index)) for index, each in enumerate(part)}
        subjects |= {
            each: personal_records.SubjectRecord(each, answers.value(len(part) + index))
            for index, each in enumerate(wanted)
        }
    return opened, list(subjects.values())


def tokens_in(value: Any) -> Iterator[bytes]:
    """The tokens in plain data, and in records of it."""
    if type(value) is bytes:
        if tokens.shown(value):
            yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tokens_in(each)
    elif type(value) is dict:
        for each in value.values():
            yield from tokens_in(each)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from tokens_in(getattr(value, name))


def revealed(value: Any, values: Opened) -> Any:
    """Plain data with the values of its tokens, or `Erased.TEXT` in their places."""
    if type(value) is bytes and value in values:
        found = values[value]
        return failures.Erased.TEXT if found is None else canonical.decode(found)
    if type(value) is list:
        return [revealed(each, values) for each in value]
    if type(value) is dict:
        return {key: revealed(each, values) for key, each in value.items()}
    if type(value) is tuple:
        return tuple(revealed(each, values) for each in value)
    if isinstance(value, msgspec.Struct):
        fields = {name: revealed(getattr(value, name), values) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    return value
