"""What is around worlds in a test: the clock, effects answered by a script, timers, and messages between worlds.

Time is virtual and stands still until something is due; then it jumps there. Effects take no time unless the script
says so; an attempt that fails is tried again after its pause. Things due at the same instant happen in the order in
which they were asked for, or, with `shuffle`, effects in an order drawn from the seed.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from worldline.base import errors
from worldline.base.secret import KNOWN
from worldline.codec import structs
from worldline.effects import attempt as attempts
from worldline.effects import retry_policy as policies
from worldline.features.domains.pure import part as domain_part
from worldline.features.forks import parent_answers
from worldline.kernel import control_commands, failure_data, part_inputs, replay, runs, user_values
from worldline.kernel import run_requests as work
from worldline.kernel.authoring import message_calls, scripts
from worldline.kernel.authoring.calls import Effect
from worldline.kernel.execution import tracebacks
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import Pending
from worldline.layers import messages as message_layer
from worldline.model import ids, inbox, payload
from worldline.model import step_records as steps
from worldline.model.inbox import MessageMode, ReceiptStatus, Reply
from worldline.model.work import WorkKind
from worldline.testing import effect_loop
from worldline.testing.life import Life

STEPS_MAX = 100_000


class Restless(errors.Error):
    """The worlds of a test go on and on."""

    code = "restless"


class StagedWork(msgspec.Struct):
    """An effect or timer that a world has asked for, as the outside knows it."""

    wanted: steps.WorkRequest
    attempt: int = 0
    parked: str = ""
    trace: str = ""  # where the last attempt failed
    looked: int = 0  # of an answer that is shared: up to this height, the other world has none

    def judged_by(self, policy: policies.RetryPolicy) -> Callable[[BaseException], failure_data.Verdict]:
        """What becomes of an attempt that raises; where it did is kept."""

        def judge(error: BaseException) -> failure_data.Verdict:
            verdict = policy.judge(error)
            self.trace = tracebacks.of_attempt(error, verdict.message)
            return verdict

        return judge

    def cleaned(self, effect: Effect[..., Any], answer: scripts.Scripted) -> scripts.Scripted:
        """What a function of the test said, without values of secrets, as an effect worker cleans it."""
        said = attempts.AttemptResult(
            answer.ok, answer.data, answer.code, answer.message, failed_with=answer.failed_with, trace=self.trace
        )
        left = attempts.clean(effect, said)
        self.trace = left.trace
        return msgspec.structs.replace(
            answer,
            ok=left.ok,
            data=left.data,
            code=left.code,
            message=left.message,
            failed_with=left.failed_with,
            final=answer.final or left.final,
        )


class Actor:
    """One world on the stage, with the script of its effects."""

    def __init__(self, name: str, life: Life, reading: scripts.ScriptProgress, random: Random) -> None:
        self.name = name
        self.life = life
        self.reading = reading
        self.random = random
        self.asked: dict[ids.IntentId, StagedWork] = {}
        self.dead: list[str] = []
        self.sharing: list[Callable[[], None]] = []  # forks that wait for an answer that this world gets

    @property
    def is_dry(self) -> bool:
        """Whether nothing leaves it."""
        branch = self.life.machine.branch
        return branch is not None and branch.dry


class Stage:
    def __init__(self, *, now_us: int, random: Random, shuffle: bool) -> None:
        self.now_us = now_us
        self.actors: dict[str, Actor] = {}
        self._random = random
        self._shuffle = shuffle
        self._due: list[tuple[int, int, int, Callable[[], None]]] = []
        self._count = 0

    def add(self, name: str, life: Life, script: scripts.Script) -> Actor:
        for each in script.effects:
            # A slip in the script would leave the effect unanswered, and the test stuck.
            if life.program.find_effect(each) is None:
                raise errors.BadInput(f"the script answers {each}(), which program {life.program.name!r} does not have")
        actor = self._add(Actor(name, life, scripts.ScriptProgress(script), self._random))
        self.declare(actor)
        return actor

    def fork(self, name: str, life: Life, reading: scripts.ScriptProgress, said: part_inputs.ForkBeginning) -> Actor:
        """A world that begins as a fork. Its first step says so, as in a store. It draws nothing that others would."""
        actor = self._add(Actor(name, life, reading, Random(name)))
        data = structs.encode(said)
        stepped = self.step(actor, inbox.Control(part_inputs.FORKED, life.carry(data)), data)
        assert not stepped.dead, stepped.dead
        return actor

    def declare(self, actor: Actor) -> None:
        """Give a world the flow domains of its program, as the worker that holds it would."""
        news = domain_part.news(actor.life.machine, actor.life.program)
        if news is not None:
            data = structs.encode(news)
            stepped = self.step(actor, inbox.Control(part_inputs.DOMAINS, actor.life.carry(data)), data)
            assert not stepped.dead, stepped.dead

    def _add(self, actor: Actor) -> Actor:
        if actor.name in self.actors:
            raise errors.Exists(f"there is a world named {actor.name!r} already")
        self.actors[actor.name] = actor
        return actor

    def reach(self, time_us: int) -> None:
        """Move the clock to a time; it never goes back."""
        self.now_us = max(self.now_us, time_us)

    # --- Playing -------------------------------------------------------------------------------------------

    def play(self, *, until: Callable[[], bool] = lambda: False, limit_us: int | None = None) -> bool:
        """Let happen what is due, moving the clock, until a condition holds or (False) nothing more will."""
        for _ in range(STEPS_MAX):  # bounded: a world that starts itself over must fail the test, not hang it
            if until():
                return True
            if not self._due or (limit_us is not None and self._due[0][0] > limit_us):
                return False
            # By time, then the drawn turn, then the order of asking: two things due at once never compare their
            # functions.
            due_us, _, _, do = heapq.heappop(self._due)
            self.reach(due_us)
            do()
        raise Restless(f"{STEPS_MAX} things have happened and there is no end; does something start itself over?")

    def step(
        self, actor: Actor, item: inbox.Item | None, data: bytes, *, error: str = "", trace: str = ""
    ) -> steps.Stepped:
        """Give a world an input, and take up what it asks for. `trace`: where the effect failed that it answers."""
        stepped = actor.life.step(item, data, time_us=self.now_us, error=error, trace=trace)
        for wanted in stepped.wanted:
            self._take_up(actor, wanted)
        for intent in stepped.closed:
            actor.asked.pop(intent, None)
        for each in stepped.cancelled:
            actor.asked.pop(each.intent, None)
        for outgoing in stepped.outgoing:
            self._post(actor, outgoing)
        if stepped.dead:
            actor.dead.append(stepped.dead)
        if actor.life.machine.unfinished:  # what one step may do is bounded: the rest is in the next
            self._at(self.now_us, lambda: self._go_on(actor))
        if actor.sharing:
            # Each of them looks once and asks again if there was nothing, so the list is emptied here.
            for look in actor.sharing:
                self._at(self.now_us, look)
            actor.sharing = []
        self.check(actor)
        return stepped

    def check(self, actor: Actor) -> None:
        """What is open inside and what is known outside must be the same: queues can be derived from the state. What a
        fork has inherited and not settled is its parent's.
        """
        work, branch = actor.life.machine.work, actor.life.machine.branch
        inside = {
            intent
            for intent, pending in work.open.items()
            if pending.kind is not WorkKind.MESSAGE and (branch is None or not branch.is_inherited(pending))
        }
        inside |= {work.wanted_again(each.pending, actor.life.at).intent for each in work.closing}
        assert inside == set(actor.asked), "a world's open work is not what it asked for"

    def _go_on(self, actor: Actor) -> None:
        """The step before left something for the next, as the holder of a world would see to."""
        if actor.life.machine.unfinished:
            self.step(actor, inbox.Control(control_commands.CONTINUE, payload.EMPTY), b"")

    def _at(self, time_us: int, do: Callable[[], None], *, effect_of: Actor | None = None) -> None:
        self._count += 1
        # Only effects: timers of one world fire in order, and messages come as they were sent.
        turn = effect_of.random.randrange(2**32) if effect_of is not None and self._shuffle else 0
        heapq.heappush(self._due, (time_us, turn, self._count, do))

    # --- Effects and timers ----------------------------------------------------------------------------------

    def _take_up(self, actor: Actor, request: steps.WorkRequest) -> None:
        actor.asked[request.intent] = asked = StagedWork(request)
        if request.kind is WorkKind.TIMER:
            self._at(request.due_us, lambda: self._fire(actor, asked))
        elif request.name == part_inputs.SHARE:
            self._at(request.due_us, lambda: self._look(actor, asked))
        elif request.name in (message_calls.SEND, message_calls.REPLY) and not request.parked:
            self._at(request.due_us, lambda: self._carry(actor, asked))
        elif request.parked and not actor.reading.answers(request.name):
            asked.parked = request.parked
        else:
            self._at(request.due_us, lambda: self._attempt(actor, asked), effect_of=actor)

    def _is_open(self, actor: Actor, asked: StagedWork) -> bool:
        # The same object, not an equal one: an intent that was closed and asked for again is other work.
        return actor.asked.get(asked.wanted.intent) is asked

    def _fire(self, actor: Actor, asked: StagedWork) -> None:
        if self._is_open(actor, asked):
            wanted = asked.wanted
            self.step(actor, inbox.TimerFired(wanted.intent, wanted.due_us, wanted.correlation), b"")

    def _attempt(self, actor: Actor, asked: StagedWork) -> None:
        if not self._is_open(actor, asked):  # it was closed or cancelled while this was on its way
            return
        effect = actor.life.program.find_effect(asked.wanted.name)
        if effect is None:
            return  # the program has lost it: like in production, it stays open
        asked.attempt += 1
        arguments, options = work.unpack_effect(asked.wanted.params)
        policy = policies.policy_of(effect, options)
        this = attempts.Attempt(options.key or asked.wanted.intent.hex(), asked.attempt, lambda _: None)
        token = attempts.current.set(this)
        try:
            snapshot = work.attached_snapshot(asked.wanted.params)
            drive = functools.partial(effect_loop.run, timeout_us=policy.timeout_us)
            answer = actor.reading.attempt(effect, arguments, asked.judged_by(policy), snapshot=snapshot, drive=drive)
        finally:
            attempts.current.reset(token)
        if KNOWN:  # no secret is known in most tests
            answer = asked.cleaned(effect, answer)
        timeout_us = policy.timeout_us
        # An answer that comes after the timeout, or never, is none: in production the attempt has been stopped by then.
        if timeout_us is not None and (answer.after_us is None or answer.after_us > timeout_us):
            message = "the attempt took too long"
            answer = scripts.Scripted(False, code="timeout", message=message, timed_out=True, after_us=timeout_us)
        if answer.after_us is not None:
            self._at(
                self.now_us + answer.after_us, lambda: self._conclude(actor, asked, policy, answer), effect_of=actor
            )

    def _conclude(
        self, actor: Actor, asked: StagedWork, policy: policies.RetryPolicy, answer: scripts.Scripted
    ) -> None:
        """One attempt is over: answer, pause and try again, or give up, as the effect worker does."""
        if not self._is_open(actor, asked):
            return
        if answer.ok:
            self._answer(actor, asked, ReceiptStatus.OK, answer.data)
            return
        # The longer pause of the two: an effect may ask for one.
        due_us = self.now_us + max(policy.delay_us(asked.attempt, asked.wanted.intent), answer.retry_us)
        deadline_us = asked.wanted.deadline_us
        out_of_time = bool(deadline_us) and due_us >= deadline_us
        out_of_attempts = policy.is_last(asked.attempt, mistake=answer.mistake)
        if not answer.final and not out_of_time and not out_of_attempts:
            self._at(due_us, lambda: self._attempt(actor, asked), effect_of=actor)
        elif policy.parks(mistake=answer.mistake) and not answer.final:
            asked.parked = answer.message
            park = structs.encode(control_commands.ParkEffect(asked.wanted.intent, asked.attempt, answer.message))
            self.step(actor, inbox.Control(control_commands.PARK, actor.life.carry(park)), park)
        else:
            status = ReceiptStatus.TIMEOUT if answer.timed_out or out_of_time else ReceiptStatus.ERROR
            failed = runs.failure(answer.code, answer.message, attempts=asked.attempt, data=answer.failed_with)
            self._answer(actor, asked, status, failed)

    def _look(self, actor: Actor, asked: StagedWork) -> None:
        """A fork looks for the answer in its parent's journal, now and after each step of the parent."""
        if not self._is_open(actor, asked):
            return
        arguments, _ = work.unpack_effect(asked.wanted.params)
        shared = user_values.load(parent_answers.SharedWork, arguments)
        parent = next(each for each in self.actors.values() if each.life.at.world == shared.world)
        asked.attempt = 1
        # Only what is new since the last look.
        for step in replay.steps(parent.life.filled(above=max(shared.above, asked.looked))):
            needed = parent_answers.needed(step, shared)
            if needed is not None:
                found = parent_answers.said(step, parent.life.load(needed), shared)
                self._answer(actor, asked, ReceiptStatus.OK, user_values.dump(found))
                return
        asked.looked = parent.life.head.height
        parent.sharing.append(lambda: self._look(actor, asked))

    @staticmethod
    def parked(actor: Actor, name: str) -> list[ids.IntentId]:
        """The parked effects of this name, and the questions of a dry fork to the world of this name."""
        machine = actor.life.machine
        return [
            intent
            for intent, pending in machine.work.open.items()
            if pending.parked is not None
            and _asked_name(machine, pending) == name
            and (intent not in actor.asked or actor.asked[intent].parked)
        ]

    def retry(self, actor: Actor, name: str) -> int:
        """Try parked effects of this name again, as a person would with `worldline effect retry`."""
        if actor.is_dry:
            raise errors.Closed(
                f"world {actor.name!r} is a dry fork, and nothing leaves it: answer the effect with answer(), or fork "
                f"with live=True"
            )
        chosen = [each for each in actor.asked.values() if each.parked and each.wanted.name == name]
        for asked in chosen:
            asked.attempt, asked.parked = 0, ""  # a person's retry begins with all attempts again
            again = structs.encode(control_commands.RetryEffect(asked.wanted.intent))
            self.step(actor, inbox.Control(control_commands.RETRY, actor.life.carry(again)), again)
            self._at(self.now_us, functools.partial(self._attempt, actor, asked), effect_of=actor)
        return len(chosen)

    def _answer(self, actor: Actor, asked: StagedWork, status: ReceiptStatus, data: bytes) -> None:
        wanted = asked.wanted
        carried = actor.life.carry(data)
        trace = asked.trace if status is not ReceiptStatus.OK else ""
        receipt = inbox.EffectReceipt(wanted.intent, status, carried, asked.attempt, wanted.correlation)
        self.step(actor, receipt, data, trace=trace)

    # --- Messages to other universes --------------------------------------------------------------------------

    def _carry(self, actor: Actor, asked: StagedWork) -> None:
        """Bring a message to a world that is on this stage as `universe/world`, or an answer back from there."""
        if not self._is_open(actor, asked):
            return
        asked.attempt = 1
        arguments, _ = work.unpack_effect(asked.wanted.params)
        if asked.wanted.name == message_calls.REPLY:
            self._carry_back(actor, asked, user_values.load(dict[str, Any], arguments))
            return
        to, packed, asks = (user_values.load(dict[str, Any], arguments)[name] for name in ("to", "content", "ask"))
        target = self.actors.get(to)
        if target is None:
            why = f"message to {to!r}: no such world on this stage; add it with also({to!r}, ...)"
            self._answer(actor, asked, ReceiptStatus.ERROR, runs.failure(message_calls.UNDELIVERABLE, why, attempts=1))
            return
        content, intent = message_calls.unpack(packed), asked.wanted.intent
        message = inbox.Message(
            intent,
            actor.life.at.universe,
            actor.life.at.world,
            asked.wanted.step,
            MessageMode.INBOX if content.inbox else MessageMode.TYPED,
            content.name,
            target.life.carry(content.data),
            content.headers,
            content.correlation or intent.hex(),
            content.to,
            Reply.RECEIPT if asks else Reply.NONE,
            world=actor.name,
        )
        reserved = message_layer.check_name(message)
        if reserved is not None:
            refused = runs.failure(message_calls.RESERVED, f"message to {to!r}: {reserved}", attempts=1)
            self._answer(actor, asked, ReceiptStatus.ERROR, refused)
            return
        self._at(self.now_us, lambda: self._deliver(target, message, content.data))
        if not asks:
            self._answer(actor, asked, ReceiptStatus.OK, message_calls.receipt_data(intent, b""))

    def _carry_back(self, actor: Actor, asked: StagedWork, said: dict[str, Any]) -> None:
        """An answer becomes the receipt of the question, if that is still open."""
        asker = next((each for each in self.actors.values() if each.life.at.world == said["world"]), None)
        # Looked up when the answer comes: the question may have been given up meanwhile, and then the answer comes too
        # late.
        question = None if asker is None else asker.asked.get(ids.IntentId(said["question"]))
        if asker is not None and question is not None:
            status = ReceiptStatus.OK if said["ok"] else ReceiptStatus.ERROR
            self._answer(asker, question, status, said["data"])
        self._answer(actor, asked, ReceiptStatus.OK, user_values.dump(question is not None))

    # --- Messages ----------------------------------------------------------------------------------------------

    def _post(self, actor: Actor, outgoing: steps.Outgoing) -> None:
        """To another world on this stage; its receipt to the sender. No such world: the receipt says so."""
        if outgoing.to is not None:
            target = next((each for each in self.actors.values() if each.life.at == outgoing.to), None)
        else:
            target = self.actors.get(outgoing.to_name)
        asks = bool(outgoing.message.reply)
        reserved = message_layer.check_name(outgoing.message) if outgoing.to is None else None
        if reserved is not None:
            target = None
        if target is not None:
            there, message = (
                target,
                msgspec.structs.replace(
                    outgoing.put_to(target.life.at), payload=target.life.carry(outgoing.data), world=actor.name
                ),
            )
            self._at(self.now_us, lambda: self._deliver(there, message, outgoing.data))
        # An answer needs no receipt, and a question's receipt is its answer.
        if outgoing.to is not None or (asks and target is not None):
            return
        status, data = ReceiptStatus.OK, user_values.dump(1)
        if target is None:
            why = f"message to {outgoing.to_name!r}: no such world on this stage; add it with also()"
            code = message_calls.UNDELIVERABLE
            if reserved is not None:
                code, why = message_calls.RESERVED, f"message to {outgoing.to_name!r}: {reserved}"
            status, data = ReceiptStatus.ERROR, runs.failure(code, why, attempts=1)
        receipt = inbox.EffectReceipt(outgoing.intent, status, actor.life.carry(data), 1)
        self._at(self.now_us, lambda: self._deliver(actor, receipt, data))

    def _deliver(self, actor: Actor, item: inbox.Item, data: bytes) -> None:
        self.step(actor, item, data)


def _asked_name(machine: Machine, pending: Pending) -> str:
    """The effect, or the world, that was asked: what shares an answer was asked for under another name."""
    return machine.runs[pending.run].record.ops[pending.op].name if pending.run else pending.name


def address(number: int) -> ids.Address:
    """Where a test's world is: nowhere, but always at the same place."""
    return ids.Address(ids.UniverseId(b"worldline/tests."), ids.WorldId(number.to_bytes(16, "big")))
