"""Random numbers and ids that replay the same: each is derived from a seed and from the place that asks for it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from worldline.codec import digest


def draw(
    seed: bytes,
    counters: dict[tuple[str, str], int],
    api: str,
    label: str,
    declared: Callable[[str], str] = lambda function: function,
) -> bytes:
    """Bytes that depend on the seed, the calling function, the API and a label or counter, and on nothing else, so that
    a draw added in one function does not shift those of another. `declared`: the name that a function counts under.
    """
    frame = sys._getframe(3)  # noqa: SLF001 - the user's function: workflow_api.x -> HandlerCalls.x -> draw
    function = declared(frame.f_code.co_qualname)
    name = label
    # Without a label, the order of draws within one function and API tells them apart.
    if not label:
        count = counters.get((function, api), 0)
        counters[function, api] = count + 1
        name = f"#{count}"
    return digest.hash_parts(b"draw", seed, function.encode(), api.encode(), name.encode())
