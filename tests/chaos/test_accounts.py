"""What several processes see of one account is linearizable, whatever befalls them.

`make test` makes one run on each store, `make soak` ten (half of the option `linear_runs`), each by a seed of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import options
from tests.chaos.bank import Bank
from tests.chaos.nemesis import Nemesis
from tests.chaos.processes import Nursery
from tests.servers import postgres

RUNS = options.number("linear_runs")
SECONDS = 6.0 if RUNS <= 2 else 10.0  # at least; a few more for a fault under way, the end, and the checks


@pytest.mark.parametrize("seed", range(RUNS // 2))
@pytest.mark.parametrize("engine", ["lmdb", "postgres"])
async def test_sends_and_asks_are_linearizable(engine: str, seed: int, nursery: Nursery, tmp_path: Path) -> None:
    server = postgres.shared() if engine == "postgres" else None
    drawn = f"{engine} {seed}"
    bank = Bank(nursery, tmp_path, seed=drawn, server=server)
    try:
        await bank.open()
        nemesis = Nemesis(bank, seed=drawn)
        await nemesis.torment(SECONDS)
        print(*nemesis.befell, sep="\n")
        print(await bank.finish())
    finally:
        await bank.aclose()
