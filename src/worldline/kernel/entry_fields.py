"""What an entry of a journal says, by its kind, as plain data: `Entry.data`, `worldline journal --json`.

`plain` makes JSON-ready data of anything stored: bytes become hexadecimal text, times RFC 3339. `fields` takes an entry
apart. Nothing here decides anything: bytes that are not what their kind promises are shown as they are.
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from worldline.base import errors, limits
from worldline.codec import canonical, sealed_token, structs
from worldline.kernel import (
    control_commands,
    part_inputs,
    poison,
    run_repair,
    run_requests,
    schedules,
    state_witness,
    user_values,
)
from worldline.kernel.event_dispatch import Answer
from worldline.kernel.execution import divergence_report
from worldline.kernel.machine import Blocked, RunFinished
from worldline.kernel.rows.row_records import JournaledFailure
from worldline.kernel.run_operations import OpKind
from worldline.model import inbox, journal, payload
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind
from worldline.model.personal_records import Erase

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Fields = dict[str, Any]


def when(time_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=time_us)


def rfc3339(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def plain(value: object, depth: int = 0) -> Any:
    """JSON-ready data: structs as objects, bytes as hexadecimal text, times as RFC 3339, enums by name."""
    if depth > limits.JSON_DEPTH_MAX:  # forks of forks, say: no reader would take it
        raise errors.BadInput(f"JSON nested deeper than {limits.JSON_DEPTH_MAX}: ask again without --json")
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name), depth + 1) for name in value.__struct_fields__}
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, bytes):
        return sealed_token.shown(value) or value.hex()  # a personal value is never shown
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, dict):
        return {str(key): plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, depth + 1) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return plain(user_values.plain(value), depth + 1)


def decoded(data: bytes) -> Any:
    """What canonical bytes hold, as plain data; bytes that are not canonical as hexadecimal text."""
    if not data:
        return None
    try:
        return plain(canonical.decode(data))
    except errors.DecodeError:
        return data.hex()


def fields(found: journal.JournalEntry) -> Fields:
    """What an entry says, by its kind."""
    # Without the blob: an entry is shown from what is in it.
    if found.blob and not found.payload:
        return {"payload": {"blob": found.blob.hex()}}
    try:
        if found.kind in journal.INPUTS:
            return item(structs.decode(inbox.Item, found.payload))  # type: ignore[arg-type]
        return _DERIVED[found.kind](found.payload)
    # Shown all the same: this is what people read when something is wrong.
    except (errors.DecodeError, ValueError, KeyError, TypeError):
        return {"payload": decoded(found.payload)}


def item(given: inbox.Item) -> Fields:
    """Show what an input says, wherever it stands: in the inbox, in a dead letter, in an entry."""
    match given:
        case inbox.InboxEvent(schema=schema, payload=carried, to=to):
            return {"event": schema, "data": _carried(carried), "to": to, **_correlated(given)}
        case inbox.EffectReceipt(intent=intent, status=status, payload=carried, attempt=attempt):
            said = {"intent": intent.hex(), "status": status.name.lower(), "attempt": attempt}
            return {**said, **_outcome(status is ReceiptStatus.OK, carried), **_correlated(given)}
        case inbox.TimerFired(intent=intent, due_us=due_us):
            return {"intent": intent.hex(), "due": rfc3339(when(due_us))}
        case inbox.Message(name=name, payload=carried, from_world=sender, from_step=step, headers=headers):
            said = {"message": name, "data": _carried(carried), "from_world": sender.hex(), "from_step": step}
            return {**said, "headers": headers, **_correlated(given)}
        case inbox.Control(command=command, payload=carried):
            return {"command": command, **_command(command, carried)}


def _correlated(given: inbox.Item) -> Fields:
    found = inbox.correlation_id_of(given)
    return {"correlation": found} if found else {}


def failure(data: bytes) -> Fields:
    why = structs.decode(JournaledFailure, data)
    said: Fields = {"code": why.code, "message": why.message}
    if why.data:
        said["data"] = plain(why.data)
    return {**said, "attempts": why.attempts} if why.attempts else said


def arguments(data: bytes) -> Any:
    """Show the arguments of an effect, as they stand in its open work or its intent."""
    try:
        return decoded(run_requests.unpack_effect(data)[0])
    except (errors.DecodeError, ValueError):
        return decoded(data)


def _carried(carried: payload.Payload) -> Any:
    if carried.inline is not None:
        return decoded(carried.inline)
    return {"blob": (carried.ref or b"").hex(), "size": carried.size}


def _outcome(ok: bool, carried: payload.Payload) -> Fields:
    if not ok and carried.inline is not None:
        return {"error": failure(carried.inline)}
    return {"data": _carried(carried)}


def _command(command: str, carried: payload.Payload) -> Fields:
    data = carried.inline
    if data is None:
        return {"data": _carried(carried)}
    if command == control_commands.RUN:
        wanted = structs.decode(control_commands.CorrelatedRun, data)
        started: Fields = {"run": wanted.run, "workflow": wanted.workflow, "args": decoded(wanted.args)}
        return {**started, "correlation": wanted.correlation_id} if wanted.correlation_id else started
    if command == control_commands.CANCEL:
        cancel = structs.decode(control_commands.CancelRun, data)
        return {"run": cancel.run, "reason": cancel.reason}
    if command == control_commands.PARK:
        park = structs.decode(control_commands.ParkEffect, data)
        return {"intent": park.intent.hex(), "attempts": park.attempts, "error": park.error}
    if command == control_commands.RETRY:
        return {"intent": structs.decode(control_commands.RetryEffect, data).intent.hex()}
    if command == control_commands.TRIGGER:
        return {"schedule": structs.decode(schedules.Trigger, data).id}
    if command == control_commands.ERASE:
        return _erased(data)
    if command == control_commands.PROGRAM:
        return _program_changed(data)
    if command == part_inputs.FORKED:
        begins = structs.decode(part_inputs.ForkBeginning, data)
        policy, answers = begins.policy.name.lower(), len(begins.script)
        return {
            "of": begins.parent,
            "height": begins.height,
            "effects": policy,
            "live": begins.live,
            "script": answers,
        }
    if command == part_inputs.REVERT:
        back = structs.decode(part_inputs.Revert, data)
        return {"to_step": back.step, "to_height": back.height, "rows": len(back.rows)}
    if command in _WAYS_OUT:
        said: Fields = msgspec.structs.asdict(structs.decode(_WAYS_OUT[command], data))
        value = said.pop("data", b"")
        shown: Fields = plain({**said, "value": decoded(value)} if value else said)
        return shown
    return {"data": decoded(data)}


_WAYS_OUT: dict[str, type[Any]] = {
    run_repair.RETRY: run_repair.RetryRun,
    run_repair.RESET: run_repair.ResetRun,
    run_repair.TERMINATE: run_repair.TerminateRun,
    run_repair.ANSWER: run_repair.AnswerRun,
    run_repair.ANSWER_EFFECT: run_repair.AnswerEffect,
}


def _program_changed(data: bytes) -> Fields:
    change = structs.decode(control_commands.ChangeProgram, data)
    return {"before": change.before.hex(), "after": change.after.hex()}


def _run_blocked(data: bytes) -> Fields:
    found = structs.decode(Blocked, data)
    # Without the advice: its commands do not have the world's name, and `why` says what to do now.
    return {"run": found.run, "report": divergence_report.finding(found.report)}


def _event_raised(data: bytes) -> Fields:
    schema, body = user_values.load(tuple[str, bytes], data)
    return {"event": schema, "data": decoded(body)}


def _intent(data: bytes) -> Fields:
    ordinal, name, run, _, params, _ = user_values.load(tuple[int, str, str, int, bytes, int], data)
    return {"effect": name, "args": arguments(params), "run": run, "ordinal": ordinal}


def _timer_set(data: bytes) -> Fields:
    ordinal, name, run, _, _, delay_us = user_values.load(tuple[int, str, str, int, bytes, int], data)
    return {"timer": name, "seconds": delay_us / 1_000_000, "run": run, "ordinal": ordinal}


def _cancelled(data: bytes) -> Fields:
    step, ordinal, name = user_values.load(tuple[int, int, str], data)
    return {"name": name, "of_step": step, "ordinal": ordinal}


def _message_sent(data: bytes) -> Fields:
    ordinal, to, schema, body = user_values.load(tuple[int, Any, str, bytes], data)
    return {"to": plain(to), "event": schema, "data": decoded(body), "ordinal": ordinal}


def _run_started(data: bytes) -> Fields:
    run, workflow, args = user_values.load(tuple[str, str, bytes], data)
    return {"run": run, "workflow": workflow, "args": decoded(args)}


def _run_finished(data: bytes) -> Fields:
    ended = structs.decode(RunFinished, data)
    said: Fields = {"run": ended.run, "status": ended.status.name.lower()}
    if said["status"] == "finished":
        return {**said, "result": decoded(ended.data)}
    return {**said, "error": failure(ended.data)}


def _scripted(data: bytes) -> Fields:
    run, _, kind, name, params, status, answer = user_values.load(_SCRIPTED, data)
    asked: Fields = {"effect": name, "args": arguments(params)} if kind == OpKind.EFFECT else {"world": name}
    said = {**asked, "run": run, "status": ReceiptStatus(status).name.lower()}
    return {**said, "data": decoded(answer)} if status == ReceiptStatus.OK else {**said, "error": failure(answer)}


def _reverted(data: bytes) -> Fields:
    step, height = user_values.load(tuple[int, int], data)
    return {"to_step": step, "to_height": height}


_SCRIPTED = tuple[str, int, int, str, bytes, int, bytes]


def _rejected(data: bytes) -> Fields:
    reason, *rest = user_values.load(list[Any], data)
    return {"reason": reason, "digest": plain(rest[0])} if rest else {"reason": reason}


def _ignored(data: bytes) -> Fields:
    what, intent, why = user_values.load(tuple[str, bytes, str], data)
    what = _LATE.get(what, what)
    return {"what": what, "intent": intent.hex(), "reason": why}


_LATE = {"receipt": Kind.EFFECT_RESULT.name.lower(), "timer": Kind.TIMER_FIRED.name.lower()}  # stored -> shown


def _answered(data: bytes) -> Fields:
    answer = structs.decode(Answer, data)
    return {"answer": decoded(answer.data)} if answer.ok else {"error": failure(answer.data)}


def _clock(data: bytes) -> Fields:
    return {"behind_us": user_values.load(int, data)}


def _poison(data: bytes) -> Fields:
    return {"reason": poison.read(data)[0]}


def _erased(data: bytes) -> Fields:
    erased = structs.decode(Erase, data)
    which = [each.hex() for each in erased.values]
    return {"subject": erased.subject.hex(), "values": which or "all", "number": erased.number}


def _erased_read(data: bytes) -> Fields:
    subject, value = user_values.load(tuple[bytes, bytes], data)
    return {"subject": subject.hex(), "value": value.hex()}


def _secret_drawn(_: bytes) -> Fields:
    """Not shown: with it, other worlds could name this one's questions."""
    return {}


def _witnessed(data: bytes) -> Fields:
    said = structs.decode(state_witness.WitnessedRoot, data)
    return {"of_step": said.step, "root": said.root.hex()}


_DERIVED = {
    Kind.EVENT_RAISED: _event_raised,
    Kind.EFFECT_REQUESTED: _intent,
    Kind.TIMER_SET: _timer_set,
    Kind.TIMER_CANCELLED: _cancelled,
    Kind.EFFECT_CANCELLED: _cancelled,
    Kind.QUESTION_CANCELLED: _cancelled,
    Kind.MESSAGE_SENT: _message_sent,
    Kind.RUN_STARTED: _run_started,
    Kind.RUN_FINISHED: _run_finished,
    Kind.HANDLER_FAILED: failure,
    Kind.UNDECODABLE_INPUT: _rejected,
    Kind.LATE_ANSWER: _ignored,
    Kind.PROGRAM_CHANGED: _program_changed,
    Kind.RUN_BLOCKED: _run_blocked,
    Kind.ANSWERED: _answered,
    Kind.CLOCK: _clock,
    Kind.POISON: _poison,
    Kind.REVERTED: _reverted,
    Kind.SCRIPTED: _scripted,
    Kind.WITNESSED: _witnessed,
    Kind.ERASED: _erased,
    Kind.ERASED_READ: _erased_read,
    Kind.SECRET_DRAWN: _secret_drawn,
}
