"""Trying other code on a world of the testing kit."""

from __future__ import annotations

import worldline as wl
from worldline import testing
from worldline.kernel import snapshots
from worldline.kernel.shadow import upgrade
from worldline.kernel.shadow.report import ShadowReport
from worldline.kernel.shadow.script import Recording
from worldline.layers.stored import history
from worldline.model.rows import Rows
from worldline.roles.shadow import window
from worldline.testing import loopless


def recording(world: testing.TestWorld, last: int | None = None) -> Recording:
    """The last so many steps of a world, or all of them."""
    life = world._actor.life
    exported = life.export("")
    stored = exported.steps()
    count = len(stored) if last is None else last
    head, parts = life.baseline.head, life.baseline.parts
    rows = Rows(snapshots.read(parts)[1])
    below = stored[: len(stored) - count]
    before = history.fold(head, below, rows, life.blobs)
    return window.recording_of(world.address, before, rows, stored[len(below) :], life.blobs)


def shadow(world: testing.TestWorld, program: wl.Program, last: int | None = None) -> ShadowReport:
    with loopless.loopless():
        return upgrade.would_differ(program, recording(world, last), lambda: None)
