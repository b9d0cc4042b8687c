"""The interface of the object store: immutable bodies under names.

An object is put once and never changed. Names are made by the caller from hex digits, nonces and slashes only
(`check_name`), so no name can leave its folder or bucket prefix. `put` is put-if-absent: a name that exists is an
error of the caller, who chooses a fresh nonce for each upload. Bodies are opaque here; their readers check them.

No name may be the folder of another: `a/b` and `a/b/c` cannot both be objects, because neither file systems nor some
S3 servers can hold both.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, runtime_checkable

import msgspec

from worldline.base import errors, limits

# A segment has at most 194 characters, which every file system takes as a file's name.
_NAME = re.compile(r"[0-9a-z]{1,64}(/[0-9a-z]{1,64}(-[0-9a-z]{1,64}){0,2}){0,7}")
_PREFIX = re.compile(r"[0-9a-z/-]*")


class ListedObject(msgspec.Struct, frozen=True):
    name: str
    size: int
    modified_us: int


class Objects(Protocol):
    async def put(self, name: str, body: bytes) -> None:
        """Durable on return. Raises `Exists` if the name is taken, also by an equal body."""

    async def get(self, name: str) -> bytes:
        """The whole body. Raises `NotFound`."""

    async def list(self, prefix: str, *, after: str = "", count_max: int = 1000) -> list[ListedObject]:
        """Objects whose name starts with `prefix`, in name order, those after `after` only.

        `after` is "" or a name listed before. A prefix that ends in a slash costs what it finds; another one may cost
        a walk over its neighbours.
        """

    async def delete(self, name: str) -> None:
        """Gone on return; deleting what is not there is fine."""

    async def close(self) -> None: ...


@runtime_checkable
class AroundObjects(Protocol):
    """Objects that pass calls on to others, timed or encoded."""

    @property
    def inner(self) -> Objects:
        """The others."""


def is_name(name: str) -> bool:
    return len(name) <= limits.OBJECT_NAME_BYTES_MAX and _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """Lower-case letters, digits, single dashes and slashes: nothing a path or URL could read otherwise."""
    if not is_name(name):
        raise errors.BadInput(f"not an object name: {name[:200]!r}")
    return name


def check_body(body: bytes) -> None:
    if len(body) > limits.BLOB_BYTES_MAX:
        raise errors.TooLarge("object", size=len(body), limit=limits.BLOB_BYTES_MAX)


def check_list(prefix: str, after: str, count_max: int) -> None:
    """Both bounds are made of what names are made of, so that a listing cannot leave its folder either."""
    for text in (prefix, after):
        if len(text) > limits.OBJECT_NAME_BYTES_MAX or _PREFIX.fullmatch(text) is None:
            raise errors.BadInput(f"not a part of an object name: {text[:200]!r}")
    if not 1 <= count_max <= limits.OBJECT_LIST_MAX:
        raise errors.BadInput(f"a listing has 1 to {limits.OBJECT_LIST_MAX} names, not {count_max}")


class Patience:
    """How long calls of objects that are far away may take: without an end, until the process that makes them begins to
    close. Then it has to leave its worlds within a time that its users wait, whatever the server does.
    """

    def __init__(self) -> None:
        self._ends_at: float | None = None  # on the event loop's clock
        self._calls: dict[asyncio.Timeout, None] = {}

    def end(self, *, in_ms: int = limits.OBJECT_CLOSING_MS) -> None:
        """From now on all calls together have this long, those that are under way and those to come."""
        self._ends_at = asyncio.get_running_loop().time() + in_ms / 1000
        for each in self._calls:
            each.reschedule(self._ends_at)

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Around a call. `TimeoutError` when the time is over."""
        # No limit until `end` is called: that sets one for the calls which are under way, too.
        async with asyncio.timeout_at(self._ends_at) as limit:
            self._calls[limit] = None
            try:
                yield
            finally:
                del self._calls[limit]
