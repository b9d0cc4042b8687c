from __future__ import annotations

from pathlib import Path

import pytest

from examples import order_saga
from examples.shadow_upgrade import __main__ as script
from examples.shadow_upgrade import new_saga
from tests import aio
from tests.cli import cli_kit

SHOWN = """\
the edited saga, over the last 15 steps
  A2: asked for effect 'ship' (to='the Moon', order='A2')
      now: effect 'insure' (cents=9900, order='A2')
  A2: finished 'refunded'
      now: waits for effect 'insure' (cents=9900, order='A2')
  A3: finished 'not paid (declined)'
      now: finished 'declined: declined'
  everything else comes out the same
"""


async def test_what_the_edited_saga_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await script.main(str(tmp_path))
    said = capsys.readouterr().out
    assert said.endswith(SHOWN)
    assert said.count("charge ") == 4, "by the old code"


def test_the_command_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    aio.run(order_saga.main(str(tmp_path)))
    capsys.readouterr()
    new = cli_kit.run("upgrade", "shop", "--shadow", "--app", new_saga.__file__, "--store", tmp_path)
    assert new.code == 1
    assert "run 'A2', operation 3, " in new.out
    assert "code:    effect 'insure' (cents=9900, order='A2') (no recorded answer, so its run waits)" in new.out
    assert "code:    finished 'declined: declined'" in new.out
    old = cli_kit.run("upgrade", "shop", "--shadow", "--app", order_saga.__file__, "--store", tmp_path)
    assert (old.code, "shop: nothing would differ: its last 15 steps" in old.out) == (0, True)
