"""Prints the traces of seeds, each with what its profile is turned to (`5,flows=1`); run in a process of its own by
`test_determinism.py`. With `--lines`, every line of them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from unittest import mock

from tests.arch.trees import ROOT
from tests.campaign.suite import SUITE
from tests.sim import layouts
from worldline.sim import seed_run
from worldline.sim.faults import profiles
from worldline.sim.runtime import truth
from worldline.sim.runtime.sim_loop import SimMachine


def result(what: str, *, keep: int = 0) -> seed_run.SeedResult:
    seed, _, profile = what.partition(",")
    return seed_run.run(int(seed), SUITE, profile=profiles.of(profile, int(seed)), keep=keep)


LINES = 1_000_000
SHOWN_BYTES = 100


def difference(seeds: Sequence[str]) -> str:
    """Say which of these seeds is another run in this process than in one of its own, where that begins, and in which
    bytes.
    """
    for each in seeds:
        here, there = result(each, keep=LINES).lines, _apart("--lines", each).splitlines()
        if here != there:
            number = next((i for i, pair in enumerate(zip(here, there, strict=False)) if pair[0] != pair[1]), -1)
            ours, theirs = parts(each, number), bytes.fromhex(_apart("--parts", each, str(number)))
            first = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), 0)
            at = max(0, first - SHOWN_BYTES)
            end = at + 4 * SHOWN_BYTES
            where = f"seed {each}, line {number} of {len(here)} and {len(there)}: {here[number:][:1]}"
            return f"{where}, from byte {at} on:\n{ours[at:end]!r}\n{theirs[at:end]!r}"
    return "none of these seeds"


def parts(what: str, number: int) -> bytes:
    """The bytes behind one line of a trace."""
    kept: list[bytes] = []
    note = truth.SimTrace.note

    def noting(trace: truth.SimTrace, host: SimMachine, op: str, *given: bytes) -> None:
        if trace.events == number:
            kept.extend(given)
        note(trace, host, op, *given)

    with mock.patch.object(truth.SimTrace, "note", noting):
        result(what)
    return b"|".join(kept)


def _apart(*words: str) -> str:
    """What this module prints in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", __name__, *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


if __name__ == "__main__":
    with layouts.scattered(1):
        match sys.argv[1:]:
            case ["--lines", seed]:
                print(*result(seed, keep=LINES).lines, sep="\n")
            case ["--parts", seed, number]:
                print(parts(seed, int(number)).hex())
            case seeds:
                for each in seeds:
                    print(each, result(each).trace)
