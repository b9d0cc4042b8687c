"""Rehearsals in processes of their own: one that hangs or dies costs one program, and is told like any problem."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from tests.hostile.rehearsal import Report

ROOT = Path(__file__).parents[2]
SAID_LINES_MAX = 12


def rehearse(first: int, end: int, *, hash_seed: int) -> list[Report]:
    """Reports of these programs, in order, from processes with this seed for Python's own hashes."""
    reports: list[Report] = []
    while first < end:
        done, last = _process(first, end, hash_seed)
        reports += done
        first = end if last is None else last.number + 1
        reports += [] if last is None else [last]
    return reports


def _process(first: int, end: int, hash_seed: int) -> tuple[list[Report], Report | None]:
    """What one process came to, and the program that ended it, if one did."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.hostile", "rehearse", str(first), str(end)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=False,
        errors="replace",
    )
    lines = ran.stdout.splitlines()
    reports = [msgspec.json.decode(line, type=Report) for line in lines if line.startswith("{")]
    if ran.returncode == 0:
        return reports, None
    begun = [int(line) for line in lines if not line.startswith("{")]
    said = "\n".join(ran.stderr.splitlines()[-SAID_LINES_MAX:])
    return reports, Report(begun[-1] if begun else first, problems=[f"the process ended ({ran.returncode}):\n{said}"])
