"""Trying other code on a world of the testing kit."""

from __future__ import annotations

import worldline as wl
from worldline import testing
from worldline.features.shadow import step_window
from worldline.features.shadow.pure import upgrade_check
from worldline.features.shadow.pure.recording import Recording
from worldline.features.shadow.pure.shadow_report import ShadowReport
from worldline.host.feature_list import PARTS
from worldline.kernel import state_rows
from worldline.layers.history import step_reader
from worldline.model.rows import Rows
from worldline.testing import loopless


def recording(world: testing.TestWorld, last: int | None = None) -> Recording:
    """The last so many steps of a world, or all of them."""
    life = world._actor.life
    exported = life.export("")
    stored = exported.steps()
    count = len(stored) if last is None else last
    head, parts = life.baseline.head, life.baseline.parts
    rows = Rows(state_rows.read(parts)[1])
    below = stored[: len(stored) - count]
    before = step_reader.fold(head, below, rows, life.blobs)
    return step_window.recording_of(world.address, before, rows, stored[len(below) :], life.blobs)


def shadow(world: testing.TestWorld, program: wl.Program, last: int | None = None) -> ShadowReport:
    with loopless.loopless():
        return upgrade_check.would_differ(program, recording(world, last), lambda: None, PARTS)
