"""The flow domains of a world, as its state has them: documents by hash, which one each domain has now, their
environment, and the cells that a document does not fit.

They come as an input, from the worker that holds the world, so a journal is enough to run them again. A document stays
for ever: an intent on its way ends under the one that it began with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from worldline.base import limits
from worldline.flow_core.authoring.document_domain import schema_of
from worldline.kernel.rows.row_ledger import RowLedger, Write, Written
from worldline.kernel.rows.row_records import DeferredOperation, Outcome
from worldline.model import row_keys as keys
from worldline.model.cell_rows import CellKind


class DocumentRow(msgspec.Struct, frozen=True):
    """A document, as RFC 8785 text."""

    raw: bytes

    def write(self) -> Written:
        return [self.raw], [], self.raw


class DomainRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A domain as its program declares it now."""

    hash: str  # of its document
    keyed: bool
    parallel: bool
    actions: list[str]

    def write(self) -> Written:
        return [self.hash, self.keyed, self.parallel, self.actions], [], b""


class Domains:
    """Of one world. Most worlds have none."""

    __slots__ = (
        "_rows",
        "actions",
        "alone",
        "answered",
        "blocked",
        "current",
        "deadlines",
        "documents",
        "env",
        "had",
        "kinds",
        "snapshots",
        "wanted",
    )

    def __init__(self, ledger: RowLedger) -> None:
        self._rows = ledger.top
        self.had = False  # the world has, or had, domains
        self.documents: dict[str, DocumentRow] = {}
        self.current: dict[str, DomainRow] = {}
        self.actions: dict[str, tuple[str, str]] = {}  # by the schema of the event that is an intent
        self.alone = False  # the program has nothing but domains: no other code is needed to run the journal again
        self.deadlines: dict[str, int] = {}  # of effects that have a total timeout
        self.snapshots: list[str] = []  # effects that are given the snapshot of the cell that asks for them
        self.kinds = False  # the rows of their cells say so; off in steps from before rows did (format 2.4)
        self.env: dict[str, Any] = {}
        self.blocked: dict[tuple[str, str], None] = {}
        self.answered: list[tuple[str, Outcome]] = []  # by a fork's script or by hand, in this step
        self.wanted: deque[DeferredOperation] = deque()  # intents of this world's runs, in this step

    def rows(self) -> Iterator[tuple[bytes, Write]]:
        if self.had:
            yield keys.DOMAINS, self.write
        for name, domain in self.current.items():
            yield keys.DOMAIN + keys.text(name), domain.write
        for found, document in self.documents.items():
            yield keys.DOCUMENT + keys.text(found), document.write

    def write(self) -> Written:
        said = [self.alone, self.deadlines, self.env, [list(each) for each in self.blocked]]
        # Places are fixed, so with kinds the snapshots are written even if there are none.
        if self.kinds:
            return [*said, self.snapshots, True], [], b""
        # Left out if there are none, so that the rows of worlds without them keep their bytes.
        return [*said, self.snapshots] if self.snapshots else said, [], b""

    def load(
        self,
        *,
        alone: bool,
        deadlines: dict[str, int],
        env: dict[str, Any],
        blocked: list[list[str]],
        snapshots: Sequence[str] = (),
        kinds: bool = False,
    ) -> None:
        """What the row says."""
        self.had, self.alone, self.deadlines, self.env = True, alone, deadlines, env
        self.blocked = dict.fromkeys((domain, key) for domain, key in blocked)
        self.snapshots = list(snapshots)
        self.kinds = kinds

    def load_domain(self, name: str, domain: DomainRow) -> None:
        self.current[name] = domain
        self.actions |= {schema_of(name, each): (name, each) for each in domain.actions}

    def load_document(self, found: str, raw: bytes) -> None:
        self.documents[found] = DocumentRow(raw)

    def declared(
        self,
        given: Mapping[str, DomainRow],
        documents: Mapping[str, bytes],
        *,
        alone: bool,
        deadlines: dict[str, int],
        snapshots: list[str],
        kinds: bool,
    ) -> None:
        """What the program declares now. A domain that it has no more takes nothing; its cells stay."""
        self.had = True
        for found, raw in documents.items():
            if found not in self.documents:
                self.documents[found] = DocumentRow(raw)
                self._rows.put(keys.DOCUMENT + keys.text(found), self.documents[found].write, is_new=True)
        for name in [each for each in self.current if each not in given]:
            self._rows.gone(keys.DOMAIN + keys.text(name))
        for name, domain in given.items():
            if self.current.get(name) != domain:
                self._rows.put(keys.DOMAIN + keys.text(name), domain.write, is_new=name not in self.current)
        self.current, self.actions = {}, {}
        for name, domain in given.items():
            self.load_domain(name, domain)
        self.alone, self.deadlines, self.snapshots = alone, deadlines, snapshots
        self.kinds = self.kinds or kinds  # a kind that is written once is never left out again
        self._note()

    @property
    def cell_kind(self) -> CellKind:
        """What the row of a cell says that is written now."""
        return CellKind.DOMAIN if self.kinds else CellKind.REDUCER

    def set_env(self, env: dict[str, Any]) -> None:
        self.env = env
        self._note()

    def block(self, domain: str, key: str) -> None:
        """A cell's data does not fit its document."""
        # Bounded, because the list is part of one row; a cell that it has no room for is still blocked.
        if len(self.blocked) < limits.FLOW_BLOCKED_MAX:
            self.blocked[domain, key] = None
            self._note()

    def unblock(self, domain: str, key: str) -> None:
        # The values are None, so another default shows that there was none.
        if self.blocked.pop((domain, key), self) is None:
            self._note()

    def answer(self, target: str, outcome: Outcome) -> None:
        """A fork's script, or a person, has answered a requirement: it is processed later in this step."""
        self.answered.append((target, outcome))

    def take_answered(self) -> list[tuple[str, Outcome]]:
        found, self.answered = self.answered, []
        return found

    def want(self, held: DeferredOperation) -> None:
        """A run asks for an intent: it is processed later in this step."""
        self.wanted.append(held)

    def take_wanted(self) -> DeferredOperation:
        return self.wanted.popleft()

    def _note(self) -> None:
        self._rows.put(keys.DOMAINS, self.write)
