"""One run is one blast radius: whatever its code does, and however it is edited, a killed host's worlds go on.

A table: each case (`blast_cases`), killed at once or later, in each store. Every world answers an unrelated request
within five seconds of its restore; of its runs only those concerned are blocked, or the input concerned is a dead
letter; and every way out works. Every test run has each case, each delay and each store; the option `every_crash` has
all of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import options
from tests.cli import blast_cases, blast_play
from tests.servers import postgres
from tests.store import postgres_kit

STORES = ("lmdb", "postgres")
DELAYS = {"at once": 0.0, "after 1 s": 1.0, "after 5 s": 5.0}
CALM, FATAL = blast_cases.CALM_FILE, blast_cases.FATAL_FILE
TABLE = [(store, delay, (CALM, FATAL)) for store in STORES for delay in DELAYS]
SELECTION = [("lmdb", "at once", (CALM,)), ("postgres", "after 1 s", (FATAL,)), ("postgres", "after 5 s", (CALM,))]
IS_WHOLE = options.flag("every_crash")
COLUMNS = TABLE if IS_WHOLE else SELECTION
CRASH_BUDGET = 2 if IS_WHOLE else 1


@pytest.mark.parametrize(("store", "delay", "files"), COLUMNS, ids=[f"{store} {delay}" for store, delay, _ in COLUMNS])
def test_a_crash_concerns_one_run(store: str, delay: str, files: tuple[str, ...], tmp_path: Path) -> None:
    """What becomes of all cases in one store after one delay."""
    url = str(tmp_path / "store") if store == "lmdb" else postgres.shared().url(schema=postgres_kit.fresh_schema())
    play = blast_play.Play(url, tmp_path, pause_seconds=DELAYS[delay], files=files, crash_budget=CRASH_BUDGET)
    play.run()
    for case, found in play.found.items():
        print(f"{case}: {found.seconds:.2f} s from its restore to an answer")
    failed = [found.error for found in play.found.values() if found.error is not None]
    if failed:
        print(play.hosts.deaths, play.hosts.logs, sep="\n")
        raise BaseExceptionGroup("cases that failed", failed)
    assert len(play.hosts.deaths) <= play.deaths_max, play.hosts.deaths
    assert {name for name, _ in play.hosts.deaths} <= {FATAL}


def test_every_run_has_each_case_each_store_and_each_delay() -> None:
    assert {store for store, _, _ in SELECTION} == set(STORES)
    assert {delay for _, delay, _ in SELECTION} == set(DELAYS)
    assert {name for _, _, files in SELECTION for name in files} == set(blast_cases.FILES)
