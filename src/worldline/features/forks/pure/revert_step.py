"""Going back: a world's state becomes what it was at an earlier step. The head moves on; nothing of the history is
lost.

The command carries the rows that differ between now and then, so that the history says it all; it is refused if the
world has made a step since they were compared. What is open now is closed, over as many steps as that needs. Work that
was open then is treated like that of a fork (`part.py`), from the next step on, under new names: dropped or asked for
again; timers are set again. Intents of flow domains that were not there then have ended, and their callers are told.
Some things do not go back: how many runs and how much work the world has had, the program that it runs under, and the
ids that clients have used. What runs draw from here on is not what they drew before.
"""

from __future__ import annotations

from typing import Final

from worldline.base import errors
from worldline.codec import canonical, digest, structs
from worldline.kernel import part_inputs, state_rows, user_values
from worldline.kernel.machine import Machine
from worldline.kernel.parts import DomainsPart
from worldline.kernel.rows import row_ledger
from worldline.kernel.rows.branch_rows import Branch, Owner
from worldline.model import row_keys as keys
from worldline.model.change import Row
from worldline.model.journal import Kind
from worldline.model.world_records import ForkPolicy

_COUNTS: Final = (keys.RUN_COUNT, keys.WORK_COUNT)
_DECLARED: Final = (keys.DOMAINS, keys.DOMAIN, keys.DOCUMENT)  # like the program, they do not go back


class Moved(errors.Error):
    """The world has made a step since what differs was looked up."""

    code = "moved_on"


def revert(machine: Machine, data: bytes, domains: DomainsPart) -> bytes:
    wanted = structs.decode(part_inputs.Revert, data)
    context = machine.now.context
    if wanted.since != context.step - 1:
        raise Moved(f"the world has moved on to step {context.step - 1}: look again at what differs")
    if wanted.policy not in (ForkPolicy.DROP, ForkPolicy.REISSUE):
        raise errors.BadInput("what was open is dropped or reissued when a world goes back")
    for row in wanted.rows:  # before anything is changed: what is refused must leave the world as it is
        _check(row)
    changed: list[tuple[str, str]] = []
    for key, *_ in wanted.rows:
        if key.startswith(keys.CELL):
            reducer, name = keys.parse(key).texts
            machine.find_cell((reducer, name))  # into memory, if it is not there
            changed.append((reducer, name))
    waiting = domains.waiting(machine, changed)
    before = _rows_of(machine)
    rows = _rows_then(before, wanted.rows)
    branch, gone = machine.branch, machine.cells.all_gone()
    fetch = machine.cells.fetch
    other = state_rows.machine_of(machine.program, machine.state, sorted(rows.items()), context.address, fetch=fetch)
    # From here on nothing is refused: the rows are those of a machine.
    for pending in list(machine.work.open.values()):
        machine.work.give_up(pending)
    for number, given_up in machine.work.closing.items:  # what was open now and has to be closed
        other.work.closing.load(number, given_up)
    machine.become(other)
    for cell in gone:
        if cell not in machine.cells:
            machine.cells.gone(cell)
    before_then = [] if machine.branch is None else machine.branch.still_owners()
    back = Branch(
        machine.ledger,
        dry=branch is not None and branch.dry,
        prefix="" if branch is None else branch.prefix,
        policy=wanted.policy,
        name=f"step {wanted.step}",
        owners=[*before_then, Owner(context.step - 1, context.address.world, wanted.height)],
        unsettled=bool(machine.work.open),
    )
    script = machine.branch or branch  # that of a fork stays, also if it goes back to before it was one
    for rule in [] if script is None else script.rules:
        back.load(rule)
    machine.branched(back)
    # Without another salt, runs would draw again what they drew before the world went back.
    salt = digest.hash_parts(b"revert", context.address.world, context.step.to_bytes(8, "big"))
    machine.origin.salted(salt)
    _note(machine, before)
    machine.draft(Kind.REVERTED, user_values.dump([wanted.step, wanted.height]))
    waiting.went_back(machine, wanted.height)
    return user_values.NONE


def _rows_of(machine: Machine) -> dict[bytes, Row]:
    return {key: row_ledger.row_of(write()) for key, write in machine.rows()}


def _rows_then(old_rows: dict[bytes, Row], changed: list[list[bytes]]) -> dict[bytes, Row]:
    """The rows as they were, with what does not go back, and without what is being closed."""
    rows = dict(old_rows)
    for each in changed:
        match each:
            case [key]:
                rows.pop(key, None)
            case [key, meaning, placement]:
                rows[key] = Row(meaning, placement)
            case _:
                raise errors.DecodeError("a row has a key, a meaning and a placement")
    # Numbers of runs and of work are never given twice, so their counts do not go back.
    for key in _COUNTS:
        rows[key] = max(rows.get(key, old_rows[key]), old_rows[key], key=_count)
    rows[keys.PROGRAM] = old_rows[keys.PROGRAM]
    rows = {key: row for key, row in rows.items() if not key.startswith((keys.CLOSING, *_DECLARED))}
    return rows | {key: row for key, row in old_rows.items() if key.startswith(_DECLARED)}


def _check(row: list[bytes]) -> None:
    if len(row) not in (1, 3):
        raise errors.DecodeError("a row has a key, or a key, a meaning and a placement")
    keys.parse(row[0])
    for part in row[1:2]:
        canonical.decode(part)


def _count(row: Row) -> int:
    match canonical.decode(row.meaning):
        case [int(count)]:
            return count
    raise errors.DecodeError("a count is one number")


def _note(machine: Machine, old_rows: dict[bytes, Row]) -> None:
    """Note every row that differs from what the last step had left."""
    top = machine.ledger.top
    after: dict[bytes, None] = {}
    for key, write in machine.rows():
        after[key] = None
        if old_rows.get(key) != row_ledger.row_of(write()):
            top.put(key, write, is_new=key not in old_rows)
    for key in old_rows:
        if key not in after:
            top.gone(key)
            if key.startswith(keys.CELL):
                reducer, name = keys.parse(key).texts
                machine.cells.gone((reducer, name))
