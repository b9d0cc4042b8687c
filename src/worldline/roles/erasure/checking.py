"""Whether every personal value that a history refers to is there as it was written, or was erased."""

from __future__ import annotations

from collections.abc import Iterable

from worldline.base import errors
from worldline.codec import sealed as tokens
from worldline.codec.sealed import Token
from worldline.layers.upkeep import sealed
from worldline.model import ids
from worldline.roles.erasure import sealing
from worldline.store import kv

PAGE = 500


async def marked(engine: kv.Engine, at: ids.Address, data: bytes) -> bytes:
    """Stored bytes of a world, to be shown: tokens whose values are gone are marked, so that this can be said."""
    found = tokens.find(data)
    if not found:
        return data
    root = await sealing.root_of(engine, at)
    read = await engine.read(*(sealed.get(root, each.subject, each.value) for each in found))
    return tokens.marked(data, (each for index, each in enumerate(found) if read.value(index) is None))


class Wrong(errors.Corrupt):
    """A value is not what was written, or is missing and was not erased. `height`: where it is first referred to."""

    def __init__(self, height: int, what: str) -> None:
        super().__init__(what)
        self.height = height


class References:
    """The tokens of a history, each with the height where it was first seen."""

    def __init__(self) -> None:
        self._heights: dict[bytes, int] = {}
        self.erased = 0

    def __len__(self) -> int:
        return len(self._heights)

    def see(self, height: int, stored: Iterable[bytes]) -> None:
        """These bytes are part of the history, at this height."""
        for data in stored:
            for each in tokens.find(data):
                self._heights.setdefault(each.pack(), height)

    async def check(self, engine: kv.Engine, root: ids.Address) -> None:
        """`Wrong` names the first value that is not as it was written."""
        every = [(tokens.parse(each), height) for each, height in self._heights.items()]
        for start in range(0, len(every), PAGE):
            part = every[start : start + PAGE]
            read = await engine.read(*(sealed.get(root, each.subject, each.value) for each, _ in part))
            for index, (token, height) in enumerate(part):
                try:
                    found = sealed.opened(token, read.value(index))
                except errors.Corrupt as error:
                    raise Wrong(height, f"a personal value: {error}") from error
                if found is None:
                    await self._check_erased(engine, root, token, height)

    async def _check_erased(self, engine: kv.Engine, root: ids.Address, token: Token, height: int) -> None:
        requests = sealed.get_erasures(root, token)
        read = await engine.read(*requests)
        if not sealed.erased_at(read.value(index) for index in range(len(requests))):
            raise Wrong(height, f"the personal value {token.value.hex()} is missing, and was not erased")
        self.erased += 1
