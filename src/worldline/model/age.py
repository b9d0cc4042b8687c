"""The age of a universe: time that no clock can make up."""

from __future__ import annotations

import msgspec


class Age(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How much time janitors have counted, by their own monotonic clocks, while they had this universe open.

    It begins at 1, so that 0 stands for "not known" in other records. `step_us`: the most that a janitor had counted
    when it stored it. By so much an age that is read may be behind what has been counted already.
    """

    age_us: int = 1
    step_us: int = 0

    def __post_init__(self) -> None:
        if self.age_us < 1 or not 0 <= self.step_us < self.age_us:
            raise ValueError("an age begins at 1, and a step of it is a part of it")

    def has_passed(self, period_us: int, *, since_us: int) -> bool:
        """Whether so much time has certainly passed since something was there at that age."""
        return self.age_us - since_us >= period_us + self.step_us
