"""Locks of worker processes: held as long as the process lives and no longer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from worldline.model import ids
from worldline.runtime.process_lock import Presence

WORKER = ids.WorkerId(bytes(range(16)))

# A worker that has a child made by fork, which outlives it. It says the child's number.
FORKING = """
import os, sys, time
from pathlib import Path
from worldline.runtime.process_lock import Presence
from worldline.model import ids

here = Presence(Path(sys.argv[1]))
here.enter(ids.WorkerId(bytes(range(16))))
child = os.fork()
if not child:
    os.write(1, b"a child of a fork\\n")
    os.close(1)
    time.sleep(60)
    os._exit(0)
os.write(1, b"%d\\n" % child)  # in one piece, whatever the buffering
time.sleep(60)
"""


def test_a_forked_child_does_not_keep_its_dead_parent_alive(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", FORKING, str(tmp_path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        said = [parent.stdout.readline() for _ in range(2)]  # in either order
        child = next(int(line) for line in said if line.strip().isdigit())
        try:
            assert not Presence(tmp_path).is_dead(WORKER)
            parent.kill()
            parent.wait()
            os.kill(child, 0)  # it lives on
            assert Presence(tmp_path).is_dead(WORKER)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_forked_child_that_closes_does_not_release_its_parents_lock(tmp_path: Path) -> None:
    here = Presence(tmp_path)
    here.enter(WORKER)
    child = os.fork()
    if not child:
        here.leave(WORKER, tidy=False)
        os._exit(0)
    os.waitpid(child, 0)
    assert not Presence(tmp_path).is_dead(WORKER)
    here.leave(WORKER)
    assert not (tmp_path / "workers" / f"{WORKER.hex()}.lock").exists()


def test_only_a_dead_workers_file_is_forgotten(tmp_path: Path) -> None:
    here = Presence(tmp_path)
    here.enter(WORKER)
    elsewhere = Presence(tmp_path)
    assert elsewhere.dead() == []
    elsewhere.forget(WORKER)
    assert not elsewhere.is_dead(WORKER)
    here.leave(WORKER, tidy=False)
    assert elsewhere.dead() == [WORKER]
    elsewhere.forget(WORKER)
    assert elsewhere.dead() == []
    assert list((tmp_path / "workers").iterdir()) == []
