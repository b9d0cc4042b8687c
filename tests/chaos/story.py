"""What the processes of the failover tests host: the canonical scenario, with a file for its outside."""

from __future__ import annotations

import os
from pathlib import Path

from tests.chaos import child, ledger
from tests.kits import scenario


class Keys(list[str]):
    """What one effect has been called with, as the scenario keeps it: here, on disk."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def append(self, key: str, /) -> None:
        ledger.note(FILE, os.environ[child.LABEL], self._name, key, 0)


class Outside(dict[str, list[str]]):
    def setdefault(self, name: str, default: list[str] | None = None, /) -> list[str]:
        del default
        return Keys(name)


FILE = ledger.opened(Path(os.environ[child.LEDGER]))
scenario.outside = Outside()
bank, shop = scenario.PROGRAMS
