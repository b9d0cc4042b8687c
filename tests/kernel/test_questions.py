"""Questions between worlds: only the world that was asked can answer, and no other can name a question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

import worldline as wl
from worldline.codec import structs
from worldline.host.feature_list import PARTS
from worldline.kernel import control_commands, event_dispatch, part_inputs, replay, state_rows, user_values
from worldline.kernel import step as kernel_step
from worldline.kernel.authoring import message_calls
from worldline.kernel.machine import Machine
from worldline.model import ids, inbox, journal, payload
from worldline.model import row_keys as keys
from worldline.model import step_records as steps
from worldline.model.inbox import MessageMode
from worldline.model.journal import Kind
from worldline.model.world_records import ForkPolicy
from worldline.testing.life import Life, WorldStanding


@dataclass(frozen=True)
class May(wl.Request[str]):
    cents: int


app = wl.Program("clerk")
judge = wl.Program("judge")


@app.workflow
async def transfer(cents: int) -> str:
    return await wl.ask("judge", May(cents))


@app.workflow
async def tells() -> None:
    await wl.send("judge", May(1))


@judge.reducer
@dataclass
class Judge:
    @wl.on
    def may(self, event: May) -> str:
        return f"yes, {event.cents}"


def at(number: int) -> ids.Address:
    return ids.Address(ids.UniverseId(b"u" * 16), ids.WorldId(number.to_bytes(16, "big")))


HERE, JUDGE, OTHER = at(1), at(2), at(3)


def start(life: Life, call: Any, run: str) -> steps.Stepped:
    data = structs.encode(control_commands.StartRun(run, call.target.name, call.pack(), b"s" * 32, named=True))
    return life.step(inbox.Control(control_commands.RUN, life.carry(data)), data, time_us=life.head.time_us + 1)


def asked(life: Life, run: str = "r") -> tuple[steps.Outgoing, inbox.Message]:
    """A question on its way, as the world that is asked gets it."""
    [outgoing] = start(life, transfer(5), run).outgoing
    message = outgoing.put_to(JUDGE)
    return outgoing, msgspec.structs.replace(message, payload=payload.inline(outgoing.data))


def answered(question: inbox.Message) -> tuple[inbox.Message, bytes]:
    """What the judge answers."""
    life = Life(judge, JUDGE)
    [reply] = life.step(question, question.payload.inline or b"", time_us=1).outgoing
    life_replays(life)
    return reply.message, reply.data


def give(life: Life, reply: inbox.Message, data: bytes) -> list[Kind]:
    stepped = life.step(msgspec.structs.replace(reply, payload=life.carry(data)), data, time_us=life.head.time_us + 1)
    return [each.kind for each in stepped.drafts]


def result(life: Life, run: str = "r") -> Any:
    record = life.machine.runs[run].record
    return user_values.load(str, record.data) if record.ended_us else None


def life_replays(life: Life) -> None:
    """From the journal alone, without the entropy that there was."""
    machine = Machine(life.program, strict=True)
    for entries in replay.steps(life.entries):
        replay.check(machine, entries, life.at, life.load, PARTS)


def test_the_world_that_was_asked_answers() -> None:
    life = Life(app, HERE)
    _, question = asked(life)
    reply, data = answered(question)
    assert Kind.LATE_ANSWER not in give(life, reply, data)
    assert result(life) == "yes, 5"
    life_replays(life)


FORGERIES = {
    "another world, without a ticket": lambda reply: inbox.Message(
        reply.message,
        OTHER.universe,
        OTHER.world,
        1,
        MessageMode.TYPED,
        event_dispatch.REPLY,
        payload.EMPTY,
        {},
        correlation=reply.correlation,
    ),
    "another world, with the ticket": lambda reply: msgspec.structs.replace(reply, from_world=OTHER.world),
    "the same id in another universe": lambda reply: msgspec.structs.replace(reply, from_universe=b"v" * 16),
    "another ticket": lambda reply: reply.vouched(ticket=bytes(16)),
    "no ticket": lambda reply: inbox.Message(*(getattr(reply, name) for name in inbox.Message.__struct_fields__)),
    "out of a file": lambda reply: reply.vouched(ticket=reply.ticket, from_file=True),
}


@pytest.mark.probe("messages.forged-answer")
@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_no_other_answer_counts_though_its_sender_knows_the_question(forge: Any) -> None:
    life = Life(app, HERE)
    _, question = asked(life)
    reply, _ = answered(question)
    data = structs.encode(event_dispatch.Answer(True, user_values.dump("forged")))
    assert give(life, forge(reply), data) == [Kind.MESSAGE, Kind.LATE_ANSWER]
    assert result(life) is None
    give(life, *answered(question))
    assert result(life) == "yes, 5", "the question waited for its answer"
    life_replays(life)


def guessed(life: Life, outgoing: steps.Outgoing) -> ids.IntentId:
    """The id of a question, by what another world can know."""
    content = message_calls.content(May(5), to="", inbox=None, headers=None, correlation=None)
    step = outgoing.message.from_step
    return ids.intent_id(life.at, step=step, ordinal=0, kind="judge", params=content.pack())


def test_no_other_world_can_compute_the_id_of_a_question() -> None:
    life = Life(app, HERE)
    outgoing, _ = asked(life)
    assert outgoing.intent != guessed(life, outgoing)
    drawn = replay.secret_of(life.entries)
    assert len(drawn) == 32
    assert outgoing.intent == ids.question_id(guessed(life, outgoing), drawn)
    asked(life, "again")
    assert [each.kind for each in life.entries].count(Kind.SECRET_DRAWN) == 1, "once in a world's life"
    other = Life(app, OTHER)
    asked(other)
    assert replay.secret_of(other.entries) != drawn


def test_what_asks_nothing_draws_nothing() -> None:
    life = Life(app, HERE)
    [outgoing] = start(life, tells(), "r").outgoing
    assert type(outgoing.put_to(JUDGE)) is inbox.Message
    assert not replay.secret_of(life.entries)
    assert keys.QUESTIONS not in dict(state_rows.rows_of(life.machine))


# --- Worlds from before there were secrets -----------------------------------------------------------------------


def old_step(machine: Machine) -> steps.Stepped:
    """A question as it was asked then."""
    data = structs.encode(control_commands.StartRun("old", "transfer", transfer(5).pack(), b"s" * 32, named=True))
    given = steps.Input(inbox.Control(control_commands.RUN, payload.inline(data)), data)
    return kernel_step.step(machine, given, steps.StepContext(HERE, 1, 1), PARTS)


def test_an_old_journal_replays_and_its_question_keeps_its_name() -> None:
    machine = Machine(app, strict=True)
    stepped = old_step(machine)
    [outgoing] = stepped.outgoing
    assert type(outgoing.put_to(JUDGE)) is inbox.Message
    assert [each.kind for each in stepped.drafts] == [Kind.CONTROL, Kind.RUN_STARTED, Kind.MESSAGE_SENT]
    assert outgoing.intent.hex() == "fed61b683cd6052d0592d0f287802ad9"
    assert stepped.state.hex() == "fd7c8908e9e44a8af05dcf4290d36a55c395d9669cc5f127812fc41f4425ae40", (
        "as releases before had it"
    )


def test_an_old_question_is_answered_beside_a_new_one() -> None:
    """The world is upgraded while a question is open, and is saved and loaded."""
    machine = Machine(app)
    stepped = old_step(machine)
    old = stepped.outgoing[0]
    head = journal.Head(1, len(stepped.drafts), bytes(32), machine.state, 1)
    life = Life(app, HERE, parent=Life(app, HERE), start=WorldStanding(head, state_rows.save(machine)))
    new, question = asked(life)
    machine = state_rows.load(app, state_rows.save(life.machine), HERE)
    assert sorted(machine.work.open) == sorted([old.intent, new.intent])
    old_question = msgspec.structs.replace(old.put_to(JUDGE), payload=payload.inline(old.data))
    give(life, *answered(old_question))
    give(life, *answered(question))
    assert (result(life, "old"), result(life)) == ("yes, 5", "yes, 5")


# --- Forks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [ForkPolicy.REISSUE, ForkPolicy.SHARE, ForkPolicy.DROP])
def test_a_fork_draws_its_own(policy: ForkPolicy) -> None:
    parent = Life(app, HERE)
    outgoing, _ = asked(parent)
    child = Life(app, OTHER, parent=parent, start=parent.standing_at(parent.head.height))
    found = begin(child, parent, policy)
    sent = [each for step in found for each in step.outgoing]
    wanted = [each for step in found for each in step.wanted]
    if policy is ForkPolicy.REISSUE:
        assert sent[0].intent != outgoing.intent
        assert replay.secret_of(child.entries[parent.head.height :]) != replay.secret_of(parent.entries)
        question = msgspec.structs.replace(sent[0].put_to(JUDGE), payload=payload.inline(sent[0].data))
        give(child, *answered(question))
        assert result(child) == "yes, 5"
    elif policy is ForkPolicy.SHARE:
        assert bytes(outgoing.intent) in bytes(wanted[0].params), (
            "it looks for the answer to the parent's question, by its name"
        )
    asked(child, "later")
    assert replay.secret_of(child.entries[parent.head.height :])
    assert replay.secret_of(child.entries[parent.head.height :]) != replay.secret_of(parent.entries)
    grandchild = Life(app, at(4), parent=child, start=child.standing_at(child.head.height))
    begin(grandchild, child, ForkPolicy.DROP)
    drawn = user_values.load(list[Any], dict(state_rows.rows_of(grandchild.machine))[keys.QUESTIONS].placement)
    assert replay.secret_of(parent.entries) not in drawn[1], "no open question needs it"


def begin(child: Life, parent: Life, policy: ForkPolicy) -> list[steps.Stepped]:
    """The first steps of a fork."""
    start = parent.head
    said = structs.encode(
        part_inputs.ForkBeginning(child.at.world, parent.at.world, "p", start.step, start.height, policy, live=True)
    )
    found = [child.step(inbox.Control(part_inputs.FORKED, child.carry(said)), said, time_us=start.time_us)]
    while child.machine.unfinished:
        found.append(
            child.step(inbox.Control(control_commands.CONTINUE, payload.EMPTY), b"", time_us=child.head.time_us)
        )
    return found
