"""What the cells of flow domains must hold, by a model that is fed with journals, step by step.

The model knows the actions of `load/flow_domains.py` as plain functions that go on where they have stopped, instead
of flows that are run again from their beginning, and nothing of Core, jobs and hosts. For one cell intents come one
after the other, in the order of the journal; the outcomes of what an intent asks for at once are applied in the order
in which it asks, whichever comes first.

A fork is fed with its parent's steps first. A world that goes back becomes what its first steps made it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import msgspec

from tests.campaign.load import clerks, flow_domains
from tests.campaign.load.flow_domains import CELL_BYTES_MAX, FIRST, PARTS, SECOND, STRICT
from worldline.codec import canonical, structs
from worldline.features.domains.pure import part as domain_part
from worldline.flow_core.authoring.action_calls import IntentAnswer, IntentEvent
from worldline.flow_core.authoring.document_domain import schema_of
from worldline.kernel import part_inputs, run_repair, user_values
from worldline.kernel import run_requests as kernel_work
from worldline.kernel.event_dispatch import Answer
from worldline.kernel.machine import RunFinished
from worldline.kernel.rows.row_records import JournaledFailure, RunStatus
from worldline.model import ids, inbox, journal, payload
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind

COMPLETE = ("complete", "")
OPEN, QUEUED = "its effects are open", "it is queued"
_CODES = {
    ReceiptStatus.TIMEOUT: "EFFECT_TIMEOUT",
    ReceiptStatus.CANCELLED: "EFFECT_CANCELLED",
    ReceiptStatus.ERROR: "",  # as the effect says
}
_SCHEMAS = {
    schema_of(name, action): (name, action)
    for name, domain in flow_domains.VERSIONS[FIRST].domains.items()
    for action in domain.actions
}
_VERSIONS = {program.domains["Bill"].hash: version for version, program in flow_domains.VERSIONS.items()}

End = tuple[str, str]  # of an intent: its status, and the code of its error
Label = tuple[str, str, int]  # of a requirement: the intent, the effect, and which of them
Name = tuple[str, str]  # of a cell: its domain and its key


class Step(msgspec.Struct, frozen=True):
    """One step of a world: its entries, in the journal of this world."""

    at: ids.Address
    entries: list[journal.JournalEntry]

    @property
    def height(self) -> int:
        return self.entries[-1].height


class Outcome(msgspec.Struct, frozen=True):
    """What became of an effect. `code`: of its failure."""

    value: Any
    code: str = ""
    message: str = ""

    @property
    def is_large(self) -> bool:
        """Whether no cell can hold it."""
        return not self.code and len(canonical.encode(self.value)) > CELL_BYTES_MAX


class Intent(msgspec.Struct, frozen=True):
    id: str
    action: str
    input: dict[str, Any]
    named: bool


class Owed(msgspec.Struct, frozen=True):
    """What waits for an intent. `asked`: the world that another one has asked; its forks do not answer that."""

    name: Name
    id: str
    asked: ids.Address | None


class Unknown(Exception):
    """A step that the model cannot be fed with: parts of it are elsewhere."""


# --- Actions ---------------------------------------------------------------------------------------------------------

# An action asks for effects by yielding them, each with its number, and goes on when all have been taken.
Flow = Generator[list[tuple[str, int]], None, End]


def _line(data: dict[str, Any], id: str) -> End:
    """The end of an intent that leaves a line: with its own id as the seed."""
    data["lines"] = [*data["lines"], f"{id}/{id}"]
    return COMPLETE


def _fill(cell: Cell, intent: Intent) -> Flow:
    yield from ()
    cell.data["cents"] += intent.input["cents"]
    return _line(cell.data, intent.id)


def _pay(cell: Cell, intent: Intent) -> Flow:
    data = cell.data
    if data["cents"] <= 0:
        return "error", "ACTION_UNAVAILABLE"
    data |= {"begun": intent.id, "receipt": None, "refused": None}
    if cell.version == SECOND:
        data["note"] = intent.id
    yield [("collect", 0)]
    data["ended"] = intent.id
    return _line(data, intent.id)


def _settle(cell: Cell, intent: Intent) -> Flow:
    data = cell.data
    data |= {"begun": intent.id, "one": None, "two": None}
    yield [("inspect", 1)]
    yield [("inspect", 2)]
    data["ended"] = intent.id
    return _line(data, intent.id)


def _pack(cell: Cell, intent: Intent) -> Flow:
    data = cell.data
    data |= dict.fromkeys(PARTS) | {"begun": intent.id, "last": ""}
    yield [("part", number + 1) for number in range(len(PARTS))]
    data["ended"] = intent.id
    return _line(data, intent.id)


def _add(cell: Cell, intent: Intent) -> Flow:
    yield from ()
    cell.data["total"] += intent.input["amount"]
    return _line(cell.data, intent.id)


def _locate(cell: Cell, intent: Intent) -> Flow:
    yield from ()
    data = cell.data
    data |= {"begun": intent.id, "region": cell.env.get("REGION")}
    if data["region"] is None:
        return "error", "LOOP_MAX_ITERATIONS"
    data["ended"] = intent.id
    return _line(data, intent.id)


_FLOWS: dict[str, Callable[[Cell, Intent], Flow]] = {
    "fill": _fill,
    "pay": _pay,
    "settle": _settle,
    "pack": _pack,
    "add": _add,
    "locate": _locate,
}
_FIRST: dict[str, dict[str, Any]] = {
    "Bill": {"cents": 0, "lines": []} | dict.fromkeys(("begun", "ended", "receipt", "refused", "one", "two")),
    "Crate": {"last": "", "lines": []} | dict.fromkeys((*PARTS, "begun", "ended")),
    "Till": {"total": 0, "lines": []} | dict.fromkeys(("begun", "ended", "region")),
}


# --- Cells -----------------------------------------------------------------------------------------------------------


class Cell:
    """`version`: of the document that it is under. `asked`: what the intent on its way has asked for at once and was
    not taken yet, in order; `early`: outcomes that came before their turn.
    """

    def __init__(self, domain: str, version: str) -> None:
        self.domain = domain
        self.version = version
        self.env: dict[str, Any] = {}
        self.data = dict(_FIRST[domain]) | ({"note": "new"} if domain == "Bill" and version == SECOND else {})
        self.queue: list[Intent] = []
        self.current: Intent | None = None
        self.asked: list[tuple[str, int]] = []
        self.early: dict[tuple[str, int], Outcome] = {}
        self.ends: dict[str, End] = {}  # of all intents that have ended
        self.done: dict[str, tuple[Intent, End]] = {}  # of those whose ids were chosen
        self.abandoned: dict[str, str] = {}  # where each abandoned intent was then: OPEN or QUEUED
        self.late: dict[str, None] = {}  # abandoned intents whose effects had an outcome afterwards
        self._flow: Flow | None = None
        self._failed = False

    @property
    def waits_for(self) -> list[tuple[str, int]]:
        """What has no outcome yet."""
        return [each for each in self.asked if each not in self.early]

    def known(self, id: str) -> Intent | None:
        """The intent of this id, if the cell knows it."""
        there = [*self.queue, *([self.current] if self.current else []), *(each for each, _ in self.done.values())]
        return next((each for each in there if each.id == id), None)

    def go_on(self, version: str, env: dict[str, Any]) -> Iterator[str]:
        """Begin what waits, as long as nothing is on its way. Gives the ids of intents that end."""
        while self.current is None and self.queue and self._fits(version):
            self.env = env
            self.current, *self.queue = self.queue
            self._failed = False
            self._flow = _FLOWS[self.current.action](self, self.current)
            yield from self._run()

    def _fits(self, version: str) -> bool:
        if self.domain == "Bill" and version != self.version:
            if version == STRICT:
                return False
            self.version = version
            if version == SECOND:
                self.data = {"note": "new"} | self.data
        return True

    def _run(self) -> Iterator[str]:
        assert self._flow is not None
        if self._failed:
            yield self._end(("error", "EFFECT_REPEATED"))
            return
        try:
            self.asked = list(next(self._flow))
        except StopIteration as ended:
            yield self._end(ended.value)

    @property
    def is_full(self) -> bool:
        """Whether it holds more than it can."""
        held = [Outcome(self.data), *self.early.values()]
        return any(each.is_large for each in held)

    def take(self, what: tuple[str, int], outcome: Outcome, *, careful: bool) -> Iterator[str]:
        """An outcome of what the intent on its way has asked for, which was not taken before. `careful`: what the cell
        cannot hold ends the intent.
        """
        if careful and outcome.is_large:
            yield self._end(("error", "INTERNAL_ERROR"))
            return
        self.early[what] = outcome
        while self.asked and self.asked[0] in self.early:
            first, *self.asked = self.asked
            self._apply(first, self.early.pop(first))
        if not self.asked:
            yield from self._run()

    def _apply(self, what: tuple[str, int], outcome: Outcome) -> None:
        name, number = what
        if name == "collect":
            failed = {"code": outcome.code, "message": outcome.message}
            self.data |= {"refused": failed} if outcome.code else {"receipt": outcome.value}
        elif outcome.code:
            self._failed = True
        elif name == "inspect":
            self.data[("one", "two")[number - 1]] = outcome.value
        else:
            self.data |= {each["path"]: each["value"] for each in outcome.value}

    def abandon(self, id: str) -> Iterator[str]:
        waiting = [each for each in self.queue if each.id == id]
        if self.current is not None and self.current.id == id:
            self.abandoned[id] = OPEN
            yield self._end(("error", "ABANDONED"))
        elif waiting:
            self.abandoned[id] = QUEUED
            self.queue.remove(waiting[0])
            yield self._ended(waiting[0], ("error", "ABANDONED"))

    def patch(self, given: Sequence[dict[str, Any]], version: str) -> None:
        """From outside, and taken: a cell whose document has changed fits that of now then. Else what does not fit is
        left out.
        """
        if self.current is None:
            self._fits(version)
        for each in given:
            if each["path"] == "cents" and isinstance(each["value"], int):
                self.data["cents"] = each["value"]

    def _end(self, end: End) -> str:
        assert self.current is not None
        intent, self.current = self.current, None
        self.asked, self.early, self._flow = [], {}, None
        return self._ended(intent, end)

    def _ended(self, intent: Intent, end: End) -> str:
        self.ends[intent.id] = end
        if intent.named:
            self.done[intent.id] = intent, end
        return intent.id


# --- Worlds ----------------------------------------------------------------------------------------------------------


class Model:
    """A world. `wrong`: what its journal says and the model does not, each with the invariant that is broken."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.cells: dict[Name, Cell] = {}
        self.wrong: list[tuple[str, str]] = []
        self.runs_told: dict[str, str] = {}  # the status that a run was told, by intent
        self._declared: dict[str, str] = {}  # the version of each domain's document
        self._env: dict[str, Any] = {}
        self._asked: dict[bytes, tuple[Name, Label]] = {}  # effects that have left the world, by their names outside
        self._shared: dict[bytes, None] = {}  # of these, the ones that look for the answer of another world
        self._placed: dict[tuple[int, int], bytes] = {}  # by the step and the place in it that asked for each
        self._open: dict[Label, bytes] = {}
        self._owed: dict[str, Owed] = {}  # by correlation
        self._due: dict[str, End | None] = {}  # who is to be told what in this step; None: that it is refused
        self._here: ids.Address | None = None  # the world that makes this step
        self._careful = False  # no outcome is taken in this step that is too much for a cell

    @staticmethod
    def of(steps: Sequence[Step]) -> Model:
        """The model of a world that has made these steps."""
        made = Model()
        for each in steps:
            made.feed(each)
        made.wrong.clear()
        return made

    def feed(self, step: Step) -> None:
        """`Unknown` if parts of the step are elsewhere. What a cell holds counts at the end of a step: only if that is
        too much, the intents that put it there have ended instead.
        """
        before, wrong = self.steps, len(self.wrong)
        self._feed(step, careful=False)
        if any(cell.is_full for cell in self.cells.values()):
            del self.wrong[wrong:]
            vars(self).update(vars(Model.of(before)), wrong=self.wrong)
            self._feed(step, careful=True)
        self.steps = [*before, step]

    def _feed(self, step: Step, *, careful: bool) -> None:
        self._due, self._careful, self._here = {}, careful, step.at
        self._input(step)
        for entry in step.entries[1:]:
            self._derived(step, entry)
        if self._due:
            self.wrong.append(("H2", f"{list(self._due)} were not told how their intents have ended"))

    # --- Inputs ---

    def _input(self, step: Step) -> None:
        item = _item(step.entries[0])
        if isinstance(item, inbox.InboxEvent) and item.schema in _SCHEMAS:
            self._submit(_SCHEMAS[item.schema], _inline(item.payload), item.correlation, None)
        elif isinstance(item, inbox.Message) and item.name in _SCHEMAS:
            asked = item.message.hex() if item.reply else ""
            self._submit(_SCHEMAS[item.name], _inline(item.payload), asked, step.at)
        elif isinstance(item, inbox.EffectReceipt) and item.intent in self._asked:
            name, label = self._asked[item.intent]
            if name in self.cells and label[0] in self.cells[name].abandoned:  # a world that goes back may lack it
                self.cells[name].late[label[0]] = None
            if self._open.get(label) == item.intent:
                status, data = item.status, _inline(item.payload)
                if item.intent in self._shared and status is ReceiptStatus.OK:
                    number, data = user_values.load(tuple[int, bytes], data)
                    status = ReceiptStatus(number)
                self._take(name, label, _outcome(status, data))
        elif isinstance(item, inbox.Control) and _was_done(step, item):
            self._command(item.command, _inline(item.payload))

    def _submit(self, called: tuple[str, str], data: bytes, correlation: str, asked: ids.Address | None) -> None:
        domain, action = called
        wanted = structs.decode(IntentEvent, data)
        name = (domain, wanted.key)
        intent = Intent(wanted.intent, action, dict(wanted.input[0]) if wanted.input else {}, wanted.named)
        cell = self._cell(name)
        known = cell.known(intent.id)
        if known is not None and (known.action, known.input) != (intent.action, intent.input):
            if correlation:
                self._due[correlation] = None
            return
        if correlation:
            self._owed[correlation] = Owed(name, intent.id, asked)
        if intent.id in cell.done:
            self._tell(name, intent.id)
        elif known is None:
            cell.queue.append(intent)
            self._go_on(name)

    def _command(self, command: str, data: bytes) -> None:
        match command:
            case part_inputs.DOMAINS:
                given = structs.decode(part_inputs.DomainDeclarations, data).domains
                self._declared = {name: _VERSIONS.get(each.hash, FIRST) for name, each in given.items()}
                for name in self.cells:
                    self._go_on(name)
            case domain_part.ENV:
                self._env = structs.decode(domain_part.SetEnv, data).env
            case domain_part.PATCH:
                patch = structs.decode(domain_part.PatchCell, data)
                name = (patch.domain, patch.key)
                self._cell(name).patch(patch.patches, self._declared[patch.domain])
                self._go_on(name)
            case domain_part.ABANDON:
                given_up = structs.decode(domain_part.AbandonIntent, data)
                name = (given_up.domain, given_up.key)
                for id in self._cell(name).abandon(given_up.intent):
                    self._tell(name, id)
                self._go_on(name)
            case run_repair.ANSWER_EFFECT:
                by_hand = structs.decode(run_repair.AnswerEffect, data)
                name, label = self._asked[by_hand.intent]
                if self._open.get(label) == by_hand.intent:
                    self._take(name, label, Outcome(canonical.decode(by_hand.data)))
            case _:
                pass

    # --- What follows from them ---

    def _derived(self, step: Step, entry: journal.JournalEntry) -> None:
        match entry.kind:
            case Kind.EFFECT_REQUESTED:
                self._requested(step.at, entry)
            case Kind.EFFECT_CANCELLED:
                placed, ordinal, _ = user_values.load(list[Any], _payload(entry))
                work = self._placed.get((placed, ordinal))
                self._open = {label: each for label, each in self._open.items() if each != work}
            case Kind.SCRIPTED:
                _, _, _, effect, params, status, data = user_values.load(list[Any], _payload(entry))
                label = _label(effect, params)
                name = self._cell_of(label)
                if name is not None:
                    self._take(name, label, _outcome(ReceiptStatus(status), data))
            case Kind.EVENT_RAISED:
                name, data = user_values.load(list[Any], _payload(entry))
                if name in _SCHEMAS:  # a run acts
                    self._submit(_SCHEMAS[name], data, "", None)
            case Kind.RUN_FINISHED:
                self._finished(structs.decode(RunFinished, _payload(entry)))
            case Kind.REVERTED:
                _, height = user_values.load(list[Any], _payload(entry))
                self._go_back(height)
            case Kind.ANSWERED if entry.correlation in self._due:
                self._told(entry.correlation, structs.decode(Answer, _payload(entry)))
            case Kind.MESSAGE_SENT:
                self._due.pop(entry.correlation, None)
            case _:
                pass

    def _finished(self, ended: RunFinished) -> None:
        """A run has ended: what it was told of its intents is how these have ended."""
        if ended.status is not RunStatus.FINISHED:
            return
        for id, *told in user_values.load(list[Any], ended.data):
            self.runs_told[id] = told[0]
            found = [list(cell.ends[id]) for cell in self.cells.values() if id in cell.ends]
            if told not in found and told[0] not in (clerks.LATE, clerks.REFUSED):
                self.wrong.append(("H2", f"run {ended.run} was told {told} of {id}, which has ended as {found}"))

    def _requested(self, at: ids.Address, entry: journal.JournalEntry) -> None:
        ordinal, effect, _, _, params, _ = user_values.load(tuple[int, str, str, int, bytes, int], _payload(entry))
        work = ids.intent_id(at, step=entry.step, ordinal=ordinal, kind=effect, params=params)
        if effect == part_inputs.SHARE:
            arguments, _ = kernel_work.unpack_effect(params)
            name, label = self._asked[user_values.load(dict[str, Any], arguments)["intent"]]
            self._shared[work] = None
        else:
            label = _label(effect, params)
            found = self._cell_of(label)
            if found is None:
                self.wrong.append(("H1", f"{label} is asked for, and no intent waits for that"))
                return
            name = found
        self._asked[work] = name, label
        self._placed[entry.step, ordinal] = work
        self._open[label] = work

    def _cell_of(self, label: Label) -> Name | None:
        """The cell whose intent on its way waits for this."""
        id, *what = label
        for name, cell in self.cells.items():
            if cell.current is not None and cell.current.id == id and tuple(what) in cell.waits_for:
                return name
        return None

    def _take(self, name: Name, label: Label, outcome: Outcome) -> None:
        self._open.pop(label, None)
        id, effect, number = label
        cell = self.cells[name]
        if cell.current is not None and cell.current.id == id and (effect, number) in cell.waits_for:
            is_read = False
            for each in cell.take((effect, number), outcome, careful=self._careful):
                is_read = self._tell(name, each)
            if not is_read:
                self._go_on(name)

    def _go_back(self, height: int) -> None:
        """What was declared stays, and so does what effects are called. What waits for an intent that was not there is
        refused; what waited in a cell goes on, if its document of now fits.
        """
        then, before = Model.of([each for each in self.steps if each.height <= height]), self._owed
        self.cells, self._open, self._owed = then.cells, then._open, then._owed
        for correlation, owed in before.items():
            if correlation not in self._owed and owed.asked in (None, self._here):
                self._due[correlation] = None
        for name in self.cells:
            self._go_on(name)

    def _cell(self, name: Name) -> Cell:
        if name not in self.cells:
            self.cells[name] = Cell(name[0], self._declared.get(name[0], FIRST))
        return self.cells[name]

    def _go_on(self, name: Name) -> None:
        for id in self.cells[name].go_on(self._declared.get(name[0], FIRST), self._env):
            if self._tell(name, id):
                break

    def _tell(self, name: Name, id: str) -> bool:
        """An intent has ended: what waits for it is told in this step. Returns whether one reads the state then, as

        it is too large for an answer: no other intent of the cell begins in the step. (No cell of these holds one so
        large: it ends with an error, and the others begin after all.)
        """
        is_read = False
        for correlation in [each for each, owed in self._owed.items() if (owed.name, owed.id) == (name, id)]:
            owed = self._owed.pop(correlation)
            is_read = is_read or (owed.asked is None and self.cells[name].is_full)
            if owed.asked in (None, self._here):
                self._due[correlation] = self.cells[name].ends[id]
        return is_read

    def _told(self, correlation: str, answer: Answer) -> None:
        wanted = self._due.pop(correlation)
        found: End | None = None
        if answer.ok:
            acted = structs.decode(IntentAnswer, answer.data)
            found = acted.status, "" if acted.error is None else acted.error["code"]
        if found != wanted:
            self.wrong.append(("H2", f"{correlation} was told {found} instead of {wanted}"))


def _item(entry: journal.JournalEntry) -> inbox.Item | None:
    if entry.kind is Kind.UNDECODABLE_INPUT:
        return None
    item: inbox.Item = structs.decode(inbox.Item, _payload(entry))  # type: ignore[arg-type]
    return item


def _payload(entry: journal.JournalEntry) -> bytes:
    if entry.blob:
        raise Unknown
    return entry.payload


def _inline(given: payload.Payload) -> bytes:
    if given.inline is None:
        raise Unknown
    return given.inline


def _was_done(step: Step, item: inbox.Control) -> bool:
    """Whether a command was not refused."""
    for entry in step.entries:
        if item.correlation and entry.kind is Kind.ANSWERED and entry.correlation == item.correlation:
            return structs.decode(Answer, _payload(entry)).ok
    return True


def _label(effect: str, params: bytes) -> Label:
    given = kernel_work.effect_arguments(params)
    return given.get("id", ""), effect, given.get("number", 0)


def _outcome(status: ReceiptStatus, data: bytes) -> Outcome:
    if status is ReceiptStatus.OK:
        return Outcome(canonical.decode(data) if data else None)
    why = structs.decode(JournaledFailure, data)
    return Outcome(None, _CODES[status] or why.code, why.message)
