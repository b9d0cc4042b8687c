"""Personal values in tests: sealed and opened in memory, wherever a test writes or reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from worldline.codec import canonical, digest, sealed
from worldline.kernel import personal
from worldline.kernel.rows import vault as vaults
from worldline.kernel.rows.vault import MemoryVault
from worldline.roles.erasure import sealing


class TestDesk:
    """For everything that is written and read outside of steps: by the test, and by the scripts of effects."""

    __test__ = False
    opens_at_once = True

    def __init__(self, vault: MemoryVault) -> None:
        self._vault = vault
        self._count = 0
        self.closed = False
        self.outside: tuple[MemoryVault, personal.Desk | None] = vaults.in_memory.set(vault), personal.desk.set(self)

    def close(self) -> None:
        """What was there before is there again. Worlds may be closed in any order."""
        self.closed = True
        if personal.desk.get() is not self:
            return  # one that was opened later is still open, and passes over this one
        vault, desk = self.outside
        while isinstance(desk, TestDesk) and desk.closed:
            vault, desk = desk.outside
        vaults.in_memory.reset(vault)
        personal.desk.reset(desk)

    def seal(self, subject: bytes, data: bytes) -> bytes:
        self._count += 1
        value = digest.hash_parts(b"test", self._count.to_bytes(8, "big"))[:16]
        kept = self._vault.keep(subject, value, data)
        return sealed.seal(subject, value, salt=kept.salt, data=data).pack()

    def open(self, token: bytes) -> bytes | None:
        return vaults.opened(self._vault, sealed.parse(token))


@contextmanager
def in_memory() -> Iterator[None]:
    """Worlds that are made in here keep their personal values in one place of their own."""
    personal.use.note()
    desk = TestDesk(MemoryVault())
    try:
        yield
    finally:
        desk.close()


def plain(data: bytes) -> Any:
    """A stored value as plain data."""
    vault = vaults.in_memory.get()
    opened = {each.pack(): vaults.opened(vault, each) for each in sealed.find(data)}
    return sealing.revealed(canonical.decode(data), opened)
