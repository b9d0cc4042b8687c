"""Scripts of forks: answers as data, so that any worker can run the fork.

A rule is a mapping, as it stands in a file::

    {"effect": "charge", "arguments": {"order": "a-1"}, "answer": "ch_1", "times": 1}
    {"effect": "ship", "error": "no stock"}
    {"ask": "bank", "arguments": {"event": "Balance"}, "answer": 100}

The first rule that fits and is not used up answers. `arguments` are those that must be equal; left out, any call fits.
A `wl.Script` of plain answers and exceptions is taken as well: its answers are used up one by one, and the last stays.
What a script of tests may have besides, functions and answers that come later, cannot be stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from worldline.base import errors
from worldline.codec import canonical
from worldline.kernel import failure_data, runs, user_values
from worldline.kernel.authoring.program import Program
from worldline.kernel.authoring.scripts import Later, Script
from worldline.kernel.rows.branch_rows import RULES_MAX, ScriptRule
from worldline.model.inbox import ReceiptStatus

Given: TypeAlias = "Script | Iterable[Mapping[str, Any]]"

_KNOWN = ("effect", "ask", "arguments", "answer", "error", "code", "times")


def rules_of(script: object, program: Program | None) -> list[bytes]:
    """The rules of a script as they are stored. `BadInput` for what is no script. `program`, if it is known here: its
    effects must be able to answer so.
    """
    if script is None:
        return []
    if isinstance(script, Script):
        rules = [rule for name in script.answers for rule in _of_script(script, name)]
    elif isinstance(script, Iterable) and not isinstance(script, str | bytes | Mapping):
        rules = [_of_mapping(each, number) for number, each in enumerate(script, 1)]
    else:
        raise errors.BadInput(f"a fork's script is a wl.Script, or a list of rules; not {script!r}")
    if len(rules) > RULES_MAX:
        raise errors.TooLarge("a script's rules", size=len(rules), limit=RULES_MAX)
    for rule in rules:
        _check(rule, program)
    return [canonical.encode(rule.write()[0]) for rule in rules]


def _of_script(script: Script, name: str) -> Iterable[ScriptRule]:
    answers = script.answers[name]
    for number, answer in enumerate(answers, 1):
        times = 0 if number == len(answers) else 1  # the last answer stays
        if isinstance(answer, type) and issubclass(answer, Exception):
            answer = answer(f"scripted for {name}()")  # noqa: PLW2901 - as a test would raise it
        if isinstance(answer, Exception):
            said = failure_data.judge(answer)
            data = runs.failure(said.code, said.message, attempts=1, data=said.data)
            yield ScriptRule(name, False, {}, ReceiptStatus.ERROR, data, times)
        elif callable(answer) or isinstance(answer, Later):
            raise errors.BadInput(
                f"script of {name}(): a fork is run by any worker, so its answers are values or exceptions; functions "
                f"and `Script.later` belong into tests (worldline.testing)"
            )
        else:
            yield ScriptRule(name, False, {}, ReceiptStatus.OK, user_values.dump(answer), times)


def _of_mapping(rule_data: object, number: int) -> ScriptRule:
    where = f"rule {number} of the script"
    if not isinstance(rule_data, Mapping):
        raise errors.BadInput(f'{where} is no rule: write {{"effect": "charge", "answer": "ch_1"}}, not {rule_data!r}')
    # A key that is spelled wrong would be ignored, and the rule would fit more than it should.
    unknown = [key for key in rule_data if key not in _KNOWN]
    if unknown:
        raise errors.BadInput(f"{where} has {unknown[0]!r}; a rule has {', '.join(_KNOWN)}")
    if ("effect" in rule_data) == ("ask" in rule_data):
        raise errors.BadInput(f'{where} names an "effect", or the world that an "ask" is for')
    if ("answer" in rule_data) == ("error" in rule_data):
        raise errors.BadInput(f'{where} has an "answer", or an "error"')
    name = rule_data.get("effect", rule_data.get("ask"))
    times, arguments = rule_data.get("times", 0), rule_data.get("arguments", {})
    if not isinstance(name, str) or not name:
        raise errors.BadInput(f"{where}: {name!r} is no name")
    if type(times) is not int or times < 0:
        raise errors.BadInput(f'{where}: "times" is a number, and 0 means always; not {times!r}')
    if not isinstance(arguments, Mapping) or not all(isinstance(key, str) for key in arguments):
        raise errors.BadInput(f'{where}: "arguments" are values by name, not {arguments!r}')
    try:
        # Sorted, so that the same script has the same bytes: a repeated call is known by them.
        wanted = {key: user_values.dump(value) for key, value in sorted(arguments.items())}
        if "error" in rule_data:
            data = runs.failure(str(rule_data.get("code", "scripted")), str(rule_data["error"]), attempts=1)
            return ScriptRule(name, "ask" in rule_data, wanted, ReceiptStatus.ERROR, data, times)
        return ScriptRule(
            name, "ask" in rule_data, wanted, ReceiptStatus.OK, user_values.dump(rule_data["answer"]), times
        )
    except errors.EncodeError as error:
        raise errors.BadInput(f"{where} cannot be stored, and a fork is run by any worker: {error}") from error


def _check(rule: ScriptRule, program: Program | None) -> None:
    """Refuse answers to effects that there are none of, and of other types."""
    if program is None or rule.ask:
        return
    effect = program.find_effect(rule.name)
    if effect is None:
        raise errors.BadInput(f"the script answers {rule.name}(), which program {program.name!r} does not have")
    if rule.status is ReceiptStatus.OK:
        try:
            effect.signature.result(rule.data)
        except errors.DecodeError as error:
            raise errors.BadInput(f"script of {rule.name}(): {error}") from error
