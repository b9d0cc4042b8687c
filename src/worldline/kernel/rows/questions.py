"""What the names of a world's questions are made with: a secret, which no other world can read.

The answer to a question is known by the question's name. Everything else in that name (address, step, ordinal, what is
asked) can be guessed, so a world draws a secret with its first question, journals it and keeps it in its state. The
same secret makes the ticket that goes with a question, for the one world that it is put to: an answer counts only if it
shows the ticket, and comes from that world (`ids.ticket`).

A world that has asked before there were secrets draws one with its next question; questions of steps before that have
no ticket, and their names stay. A fork is another world and draws its own: its parent, or the author of the file that
it was imported from, knows the one it has inherited. That names inherited questions alone, and the next fork drops it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from worldline.codec import digest
from worldline.kernel import user_values
from worldline.kernel.rows.current_step import CurrentStep
from worldline.kernel.rows.row_ledger import RowLedger, Write, Written
from worldline.model import row_keys as keys
from worldline.model.journal import Kind


class QuestionRows:
    __slots__ = ("_drawn", "_rows")

    def __init__(self, ledger: RowLedger) -> None:
        self._rows = ledger.top
        self._drawn: list[tuple[int, bytes]] = []  # since which step, what; nothing: none until the next is drawn

    def load(self, since: list[int], secrets: list[bytes]) -> None:
        """What the row says."""
        self._drawn = list(zip(since, secrets, strict=True))

    def of(self, step: int) -> bytes:
        """What the names of the questions of this step are made with."""
        # The youngest that was there by then: a fork adds one, and older questions keep theirs.
        return next((secret for since, secret in reversed(self._drawn) if since <= step), b"")

    def secret(self, now: CurrentStep) -> bytes:
        """What the name of a question of the current step is made with. The first one draws it."""
        step = now.context.step
        secret = self.of(step)
        if secret:
            return secret
        # A replay is given what was drawn, because no code can derive it.
        secret = now.given_secret or _drawn(now)
        if secret:
            self._drawn.append((step, secret))
            self._rows.put(keys.QUESTIONS, self._write)
            now.draft(Kind.SECRET_DRAWN, user_values.dump(secret))
        return secret

    def forked(self, step: int, still: Sequence[bytes]) -> None:
        """Let a fork that begins in this step draw its own. `still`: the secrets that open questions need."""
        if not self._drawn:
            return
        self._drawn = [each for each in self._drawn if each[1] in still]
        if self._drawn:
            # From this step on there is none, so the next question draws one.
            self._drawn.append((step, b""))
            self._rows.put(keys.QUESTIONS, self._write)
        else:
            self._rows.gone(keys.QUESTIONS)

    def rows(self) -> Iterator[tuple[bytes, Write]]:
        if self._drawn:
            yield keys.QUESTIONS, self._write

    def _write(self) -> Written:
        # All of it is placement: two worlds that live the same have drawn something else.
        return [len(self._drawn)], [[each[0] for each in self._drawn], [each[1] for each in self._drawn]], b""


def _drawn(now: CurrentStep) -> bytes:
    """Of the process's entropy and of this step alone: what one world keeps, and a copy of it shows, tells nothing of
    what another has drawn.
    """
    context = now.context
    if context.entropy is None:
        return b""
    at = context.address
    return digest.hash_parts(b"secret", context.entropy.bytes(), at.universe, at.world, context.step.to_bytes(8, "big"))
