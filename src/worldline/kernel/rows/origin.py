"""The program that a world runs under, since which step, and what its draws are made from.

Handlers draw from the world's seed, runs from their own. A fork that draws something else than its parent has a salt:
what its runs draw from then on is made from both. What they drew before stays, because their code is run again: each
feeding of a run says how many salts there were. Times would not do: a fork may begin at the very time of the step
before.
"""

from __future__ import annotations

from worldline.codec import digest
from worldline.kernel.rows.row_ledger import RowLedger, Written
from worldline.model import ids
from worldline.model import row_keys as keys


class OriginRows:
    __slots__ = ("_all", "_rows", "_seed", "program_hash", "salts", "since_step")

    def __init__(self, ledger: RowLedger, program_hash: bytes) -> None:
        self._rows = ledger.top
        self.program_hash = program_hash  # of the program that the world's history says it runs under
        self.since_step = 0  # in which that began
        self._seed = b""  # of the handlers' draws; empty: made from the world's address
        self._all: list[bytes] = []  # salts, the last of which counts now
        self.salts = 0  # how many

    def load(self, program_hash: bytes, seed: bytes, salts: list[bytes], *, since_step: int) -> None:
        """What the row says."""
        self.program_hash, self._seed, self.since_step = program_hash, seed, since_step
        self._all, self.salts = salts, len(salts)

    def changed_program(self, program_hash: bytes, *, step: int) -> None:
        """Record that the world continues under another program."""
        self.program_hash, self.since_step = program_hash, step
        self._rows.put(keys.PROGRAM, self.write)

    def forked(self, parent: ids.Address, *, salt: bytes) -> None:
        """Let the world begin as a fork. It draws what its parent would have drawn; with a salt, something else."""
        # The seed of a fork's fork is still that of the first parent.
        self._seed = self._seed or _seed_of(parent)
        if salt:
            self.salted(salt)
        self._rows.put(keys.PROGRAM, self.write)

    def salted(self, salt: bytes) -> None:
        """What is drawn from here on is made from this, too. The caller notes the row."""
        self._seed = digest.hash_parts(b"salted", self._seed, salt)
        self._all.append(salt)
        self.salts += 1

    def seed(self, address: ids.Address) -> bytes:
        """What the draws of handlers are made from, besides where they are made."""
        return self._seed or _seed_of(address)

    def run_seed(self, seed: bytes, salts: int) -> bytes:
        """What the draws of a run are made from, in a feeding when there were so many salts."""
        return digest.hash_parts(b"salted", seed, self._all[salts - 1]) if salts else seed

    def write(self) -> Written:
        return [self.program_hash, self._seed, *self._all], [self.since_step] if self.since_step else [], b""


def _seed_of(address: ids.Address) -> bytes:
    return digest.hash_parts(b"draws", address.universe, address.world)
