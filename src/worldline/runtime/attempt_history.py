"""The attempts at an effect, as they are kept beside the journal when it has its answer: for people, like a traceback.

While an effect is open, its own record has them. The step that takes the answer keeps them among its traces, if there
was more to them than one attempt that succeeded. There they are overwritten after a while, as all traces are.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.model import ids, traces
from worldline.model.work import EffectAttempt, EffectHistory


def dump(effect: str, intent: ids.IntentId, tried: Sequence[EffectAttempt]) -> str:
    """The text that is kept."""
    return msgspec.json.encode(EffectHistory(effect, intent.hex(), [*tried])).decode()


def of_run(kept: Sequence[traces.StepTraces], run: str) -> list[EffectHistory]:
    """Those of a run's effects that are kept, the newest first."""
    found: list[EffectHistory] = []
    for each in kept:
        for text in [
            one.text for one in each.traces if one.source is traces.TraceSource.ATTEMPTS and one.subject == run
        ]:
            try:
                found.append(msgspec.json.decode(text, type=EffectHistory))
            except (msgspec.DecodeError, msgspec.ValidationError):
                continue  # it was cut: as good as none
    return found
