"""What a forked world is besides its state: whether its effects leave it, the answers it was given beforehand, and the
inherited open work whose fate is not decided yet.

A rule of a script answers an effect by its name, or a question by the world that it is for, and maybe by some of the
arguments, so many times. The first rule that fits and is not used up answers; how often each was used is part of the
state, so any worker resumes where the last one was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from worldline.base import errors
from worldline.codec import canonical
from worldline.kernel.rows.row_ledger import RowLedger, Write, Written
from worldline.kernel.rows.row_records import Outcome, Pending
from worldline.model import row_keys as keys
from worldline.model.inbox import ReceiptStatus
from worldline.model.world_records import ForkPolicy

RULES_MAX = 10_000


class ScriptRule(msgspec.Struct):
    """One answer: to an effect, or with `ask` to questions for a world. `arguments`: those that must be equal, as
    canonical bytes by name. `times`: how often; 0: always.
    """

    name: str
    ask: bool
    arguments: dict[str, bytes]
    status: ReceiptStatus
    data: bytes
    times: int = 0
    used: int = 0

    def fits(self, name: str, arguments: dict[str, Any], *, ask: bool) -> bool:
        # A rule that is used up makes room for the next one that fits.
        if self.name != name or self.ask is not ask or (self.times and self.used >= self.times):
            return False
        return all(
            key in arguments and canonical.encode(arguments[key]) == data for key, data in self.arguments.items()
        )

    def use(self) -> None:
        self.used += 1

    def write(self) -> Written:
        meaning = [self.name, self.ask, self.arguments, int(self.status), self.data, self.times, self.used]
        return meaning, [], self.data


def rule_of(meaning: Any) -> ScriptRule:
    """What `Rule.write` wrote, or what a fork was given."""
    try:
        name, ask, arguments, status, data, times, used = meaning
        rule = ScriptRule(name, ask, arguments, ReceiptStatus(status), data, times, used)
        # Decoded only to be checked: it is given as an answer as it is.
        canonical.decode(data)
        # A struct does not check its fields when it is made, so it is converted once more.
        return msgspec.convert(msgspec.to_builtins(rule, builtin_types=(bytes,)), ScriptRule, builtin_types=(bytes,))
    except (TypeError, ValueError, msgspec.ValidationError) as error:
        raise errors.DecodeError(f"not a rule of a script: {error}") from error


class Owner(msgspec.Struct, frozen=True):
    """The world that has asked for inherited work, in steps up to this one: the answers are in its journal, above
    `height`.
    """

    step: int
    world: bytes
    height: int


class Branch:
    """While it is `unsettled`, the open work of steps up to the last one's of `owners` is inherited work whose fate is
    not decided yet. A fork of a fork that had undecided work has several owners.
    """

    __slots__ = ("_rows", "dry", "name", "owners", "policy", "prefix", "rules", "unsettled")

    def __init__(
        self,
        ledger: RowLedger,
        *,
        dry: bool,
        prefix: str,
        policy: ForkPolicy,
        name: str,
        owners: list[Owner],
        unsettled: bool,
    ) -> None:
        self._rows = ledger.top
        self.dry = dry
        self.prefix = prefix  # of idempotency keys that users choose
        self.policy = policy
        self.name = name  # of the parent
        self.owners = owners  # the parent is the last
        self.unsettled = unsettled
        self.rules: list[ScriptRule] = []

    def begin(self, rules: list[ScriptRule]) -> None:
        """The fork begins: note all its rows."""
        self.rules = rules
        self._rows.put(keys.BRANCH, self.write)
        for number, rule in enumerate(rules):
            self._rows.put(keys.SCRIPT + keys.number(number), rule.write)

    def load(self, rule: ScriptRule) -> None:
        """A rule that was loaded, in order."""
        self.rules.append(rule)

    def forget(self) -> None:
        """Another branch takes its place."""
        for number in range(len(self.rules)):
            self._rows.gone(keys.SCRIPT + keys.number(number))
        self.rules = []

    def owner(self, pending: Pending) -> Owner:
        """The world that has asked for inherited work."""
        # In the order of their steps: the first that reaches so far is the one that asked.
        return next(each for each in self.owners if pending.step <= each.step)

    def still_owners(self) -> list[Owner]:
        """The owners of the work whose fate is not decided, for a fork of it."""
        return self.owners if self.unsettled else []

    def is_inherited(self, pending: Pending) -> bool:
        """Whether this open work was the parent's and its fate is not decided."""
        return self.unsettled and pending.step <= self.owners[-1].step

    def settled(self) -> None:
        """Note that the fate of all inherited work is decided."""
        self.unsettled = False
        self._rows.put(keys.BRANCH, self.write)

    def answer(self, name: str, arguments: dict[str, Any], *, ask: bool = False) -> Outcome | None:
        """What the script answers, if it does: that rule is used once more."""
        for number, rule in enumerate(self.rules):
            if rule.fits(name, arguments, ask=ask):
                rule.use()
                # How often it was used is part of the state
                self._rows.put(keys.SCRIPT + keys.number(number), rule.write)
                return Outcome(rule.status, rule.data)
        return None

    def write(self) -> Written:
        owners = [[each.world, each.height] for each in self.owners]
        meaning = [self.dry, self.prefix, int(self.policy), self.name, owners, self.unsettled]
        return meaning, [each.step for each in self.owners], b""

    def rows(self) -> Iterator[tuple[bytes, Write]]:
        yield keys.BRANCH, self.write
        for number, rule in enumerate(self.rules):
            yield keys.SCRIPT + keys.number(number), rule.write
