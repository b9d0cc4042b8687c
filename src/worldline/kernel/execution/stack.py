"""How deep user code may recurse: the same wherever it is called from, so that a replay fails where the first run did.

A `RecursionError` is the code's own failure, and journaled as such. But Python counts all frames of a thread, and a
step is made at different depths: by a cycle, by a restore, by a test, in a run that is fed or rebuilt. So user code is
always entered at one depth: from a shallower stack through frames that do nothing, from a deeper one with the limit
raised by the difference for the time of the call. User code has the process's recursion limit less `FRAMES`; a process
that changes its limit changes that for its worlds too.

Frames of C code are counted by some versions of Python and not seen here; there are none between a role and a step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

FRAMES: Final = 20  # the depth at which user code is entered: about the depth of the calls that lead to it in a host

_guess = [FRAMES]  # how many frames were above the last call: mostly the next one has as many


def call(function: Callable[..., Any], *given: Any) -> Any:
    """Call user code, at the one depth."""
    above = _guess[0]
    try:
        # Instead of counting: whether the frame that was outermost last time is so again.
        known = sys._getframe(above).f_back is None  # noqa: SLF001 - nothing else tells a stack's depth
    except ValueError:
        known = False
    if not known:
        above = _guess[0] = _count(sys._getframe())  # noqa: SLF001
    if above <= FRAMES:
        return _deeper(FRAMES - above, function, given)
    limit = sys.getrecursionlimit()
    # By just what the stack is deeper, so user code has the same depth left.
    sys.setrecursionlimit(limit + above - FRAMES)
    try:
        return _deeper(0, function, given)
    finally:
        sys.setrecursionlimit(limit)


def _deeper(frames: int, function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    return function(*given) if frames == 0 else _deeper(frames - 1, function, given)


def _count(frame: FrameType | None) -> int:
    """Count the frames above one."""
    count = -1
    while frame is not None:
        count += 1
        frame = frame.f_back
    return count
