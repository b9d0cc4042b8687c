"""Whether every personal value that a history refers to is there as it was written, or was erased."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from worldline.base import errors, limits
from worldline.codec import sealed_token as tokens
from worldline.codec.sealed_token import Token
from worldline.layers import personal_records
from worldline.model import ids
from worldline.runtime.personal import outside_desk
from worldline.store import kv


async def marked(engine: kv.Engine, at: ids.Address, data: bytes) -> bytes:
    """Stored bytes of a world, to be shown: tokens whose values are gone are marked, so that this can be said."""
    found = tokens.find(data)
    if not found:
        return data
    root = await outside_desk.root_of(engine, at)
    return tokens.marked(data, [each for each, raw in await stored(engine, root, found) if raw is None])


async def stored(engine: kv.Engine, root: ids.Address, tokens: Sequence[Token]) -> list[tuple[Token, bytes | None]]:
    """The records of these tokens' values, as they are stored."""
    records: list[tuple[Token, bytes | None]] = []
    for start in range(0, len(tokens), limits.PERSONAL_PAGE):
        part = tokens[start : start + limits.PERSONAL_PAGE]
        read = await engine.read(*(personal_records.get(root, each.subject, each.value) for each in part))
        records += [(each, read.value(index)) for index, each in enumerate(part)]
    return records


class WrongValue(errors.Corrupt):
    """A value is not what was written, or is missing and was not erased. `height`: where it is first referred to."""

    def __init__(self, height: int, what: str) -> None:
        super().__init__(what)
        self.height = height


class TokenHeights:
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
                # The first height wins: that is where a reader has to look.
                self._heights.setdefault(each.pack(), height)

    async def check(self, engine: kv.Engine, root: ids.Address) -> None:
        """`WrongValue` names the first value that is not as it was written."""
        for token, raw in await stored(engine, root, [tokens.parse(each) for each in self._heights]):
            height = self._heights[token.pack()]
            try:
                found = personal_records.opened(token, raw)
            except errors.Corrupt as error:
                raise WrongValue(height, f"a personal value: {error}") from error
            # Only for what is missing: erasures are other records, read one by one.
            if found is None:
                await self._check_erased(engine, root, token, height)

    async def _check_erased(self, engine: kv.Engine, root: ids.Address, token: Token, height: int) -> None:
        requests = personal_records.get_erasures(root, token)
        read = await engine.read(*requests)
        if not personal_records.erased_at(read.value(index) for index in range(len(requests))):
            raise WrongValue(height, f"the personal value {token.value.hex()} is missing, and was not erased")
        self.erased += 1
