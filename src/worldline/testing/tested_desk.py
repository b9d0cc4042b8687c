"""Personal values in tests: sealed and opened in memory, wherever a test writes or reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from worldline.codec import canonical, digest, sealed_token
from worldline.kernel.personal import personal_value
from worldline.kernel.personal import vault_interface as vaults
from worldline.kernel.personal.vault_interface import MemoryVault
from worldline.runtime.personal import outside_desk


class TestDesk:
    """For everything that is written and read outside of steps: by the test, and by the scripts of effects."""

    __test__ = False
    opens_at_once = True

    def __init__(self, vault: MemoryVault) -> None:
        self._vault = vault
        self._count = 0
        self.closed = False
        self.outside: tuple[MemoryVault, personal_value.Desk | None] = (
            vaults.in_memory.set(vault),
            personal_value.desk.set(self),
        )

    def close(self) -> None:
        """What was there before is there again. Worlds may be closed in any order."""
        self.closed = True
        if personal_value.desk.get() is not self:
            return  # one that was opened later is still open, and passes over this one
        vault, desk = self.outside
        # Those below may be closed already: going back to one of them would open values of a world that is gone.
        while isinstance(desk, TestDesk) and desk.closed:
            vault, desk = desk.outside
        vaults.in_memory.reset(vault)
        personal_value.desk.reset(desk)

    def seal(self, subject: bytes, data: bytes) -> bytes:
        self._count += 1  # ids come from a counter: the same test seals the same tokens
        value = digest.hash_parts(b"test", self._count.to_bytes(8, "big"))[:16]
        kept = self._vault.keep(subject, value, data)
        return sealed_token.seal(subject, value, salt=kept.salt, data=data).pack()

    def open(self, token: bytes) -> bytes | None:
        return vaults.opened(self._vault, sealed_token.parse(token))


@contextmanager
def in_memory() -> Iterator[None]:
    """Worlds that are made in here keep their personal values in one place of their own."""
    personal_value.use.note()
    desk = TestDesk(MemoryVault())
    try:
        yield
    finally:
        desk.close()


def plain(data: bytes) -> Any:
    """A stored value as plain data."""
    vault = vaults.in_memory.get()
    opened = {each.pack(): vaults.opened(vault, each) for each in sealed_token.find(data)}
    return outside_desk.revealed(canonical.decode(data), opened)
