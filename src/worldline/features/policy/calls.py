"""The policy of a universe: rules over what its own worlds may send, receive and use.

When a change returns, it holds: every process that runs worlds of the universe was made to read it before it may write
anything more (`features/policy/batches.py`). A change that was interrupted is in the record, and may not hold yet; the
same call again finds it there and makes it hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.client import name_patterns
from worldline.client.connection import Connection
from worldline.features.policy import batches as layer
from worldline.layers import universes, worlds
from worldline.model import ids
from worldline.model import policy as model
from worldline.runtime import operator_calls
from worldline.store import kv, transact

T = TypeVar("T")

RuleVerb = Literal["deny", "only"]
RuleScope = Literal["send", "receive", "effect"]


class Rule(msgspec.Struct, frozen=True):
    """`deny`: what it says may not be. `only`: of this scope, its worlds may do nothing but what such rules say.

    `worlds`, `program`, `peers` and `names` are names, or the beginnings of names with a `*` behind. `send`: `worlds`
    are those that send, `peers` those that are sent to, `universe/world` for one of another universe. `receive`:
    `worlds` are those that are sent to, `peers` those that send, all of this universe. `names` are schemas of
    messages, `inbox:` and the name of an inbox, or effects.
    """

    number: int
    verb: RuleVerb
    scope: RuleScope
    worlds: str = model.ANY
    program: str = model.ANY
    peers: str = model.ANY
    names: str = model.ANY


class PolicyChange(msgspec.Struct, frozen=True):
    """One change: a rule was added, or taken away."""

    change: int
    added: bool
    rule: Rule
    time_us: int


# --- Rules ------------------------------------------------------------------------------------------------------------


async def add_rule(
    connection: Connection, verb: str, scope: str, *, worlds: str, program: str, peers: str, names: str
) -> Rule:
    """Add a rule; the one that is there, if there is just such a one."""
    wanted = _wanted(verb, scope, worlds=worlds, program=program, peers=peers, names=names)

    def change(batch: kv.Batch, record: universes.Granted, time_us: int) -> model.PolicyRule:
        for each in record.grants.rules:
            # The same rule under any number: a call that is repeated adds none.
            if msgspec.structs.replace(each, number=0) == wanted:
                return each
        return layer.add_rule(batch, record, wanted, time_us=time_us)

    return _rule(await _change(connection, change))


async def drop_rule(connection: Connection, number: int) -> Rule:
    """Take a rule away. `NotFound` if there is none of this number."""

    def change(batch: kv.Batch, record: universes.Granted, time_us: int) -> model.PolicyRule:
        for each in record.grants.rules:
            if each.number == number:
                layer.drop_rule(batch, record, each, time_us=time_us)
                return each
        raise errors.NotFound(f"universe {connection.name!r} has no rule {number}: `worldline policy list` shows them")

    return _rule(await _change(connection, change))


async def rules(connection: Connection) -> list[Rule]:
    """The rules, in the order in which they were added."""
    return [_rule(each) for each in (await _record(connection.store.engine, connection.id)).grants.rules]


async def why_not(
    connection: Connection, world: str, *, to: str | None = None, event: str = "", effect: str | None = None
) -> str | None:
    """Which rule is against what a world would do, or None if it may: send an event, or use an effect."""
    if (to is None) == (effect is None):
        raise errors.BadInput("name either an effect, or where a message goes")
    read = await connection.store.engine.read(worlds.get_name(connection.id, world))
    at = worlds.named(connection.id, read.value(0))
    if at is None:
        raise errors.NotFound(f"no world {world!r} in universe {connection.name!r}")
    read = await connection.store.engine.read(*layer.reads(at))
    found = worlds.decode(at, read.value(0))
    bounds = layer.bounds(
        layer.PolicyRecords(at, read.value(0), read.value(1), read.page(2)), program=found.meta.program
    )
    if bounds is None:
        return None
    if effect is not None:
        return bounds.why_no_effect(effect)
    assert to is not None
    # A name with a slash is one of another universe, unless a slash in front says that it is of this one.
    return bounds.why_no_message(to=to.removeprefix("/"), name=event, near=to.startswith("/") or "/" not in to)


# --- Changes ----------------------------------------------------------------------------------------------------------


async def changes(connection: Connection) -> list[PolicyChange]:
    """The last changes, the newest first."""
    wanted = universes.grant_log_range(connection.id, count_max=limits.GRANT_CHANGES_SHOWN_MAX)
    found: list[PolicyChange] = []
    for each in universes.decode_grant_log((await connection.store.engine.read(wanted)).page(0)):
        found += [PolicyChange(each.change, each.allowed, _rule(rule), each.time_us) for rule in each.rules]
    return found


async def _change(connection: Connection, change: Callable[[kv.Batch, universes.Granted, int], T]) -> T:
    """Change the record; then have every holder read it. A change that is there already is made to hold, too: the call
    that has made it may have been interrupted.
    """
    engine, env = connection.store.engine, connection.store.env

    async def attempt() -> transact.NothingToWrite[T] | transact.Write[T]:
        read = await engine.read(universes.get_grants(connection.id), universes.newest_grant_change(connection.id))
        record = universes.decode_grants(connection.id, read.value(0), read.page(1))
        batch = kv.Batch()
        changed = change(batch, record, read.time_us)
        return transact.Write(batch, lambda _: changed) if batch.puts else transact.NothingToWrite(changed)

    changed = await transact.run(engine, env, attempt)
    # Also if nothing was written: the call that wrote it may have been cut off before this.
    await operator_calls.fence_holders(engine, env, connection.id)
    return changed


class PolicyRenames:
    """A world with another name may be one that other rules are about (`RenameWatch`)."""

    async def renamed(self, engine: kv.Engine, env: envs.Env, at: ids.Address) -> None:
        """Have its holder read the rules again. They are read after the rename is stored: a rule that is added later
        finds the new name, and one that was added before is seen here.
        """
        if (await _record(engine, at.universe)).grants.rules:
            await operator_calls.fence_holders(engine, env, at.universe, only=at)


async def _record(engine: kv.Engine, universe: ids.UniverseId) -> universes.Granted:
    read = await engine.read(universes.get_grants(universe), universes.newest_grant_change(universe))
    return universes.decode_grants(universe, read.value(0), read.page(1))


# --- What callers give and see ----------------------------------------------------------------------------------------


def _wanted(verb: Any, scope: Any, *, worlds: str, program: str, peers: str, names: str) -> model.PolicyRule:
    verbs, scopes = model.Verb.__members__, model.PolicyScope.__members__
    if not isinstance(verb, str) or verb.upper() not in verbs:
        raise errors.BadInput(f"a rule is 'deny' or 'only', not {verb!r}")
    if not isinstance(scope, str) or scope.upper() not in scopes:
        raise errors.BadInput(f"a rule is about 'send', 'receive' or 'effect', not {scope!r}")
    wanted = model.PolicyRule(
        0,
        verbs[verb.upper()],
        scopes[scope.upper()],
        name_patterns.check(worlds, "worlds"),
        name_patterns.check(program, "program"),
        name_patterns.check(peers, "peers"),
        name_patterns.check(names, "names"),
    )
    if wanted.scope is model.PolicyScope.EFFECT and wanted.peers != model.ANY:
        raise errors.BadInput("a rule about effects names no other worlds: leave out peers=")
    if wanted.scope is model.PolicyScope.RECEIVE and wanted.programs != model.ANY:
        raise errors.BadInput("a rule about receiving names no program: leave out program=")
    return wanted


def _rule(rule: model.PolicyRule) -> Rule:
    verb: Any = rule.verb.name.lower()
    scope: Any = rule.scope.name.lower()
    return Rule(rule.number, verb, scope, rule.worlds, rule.programs, rule.peers, rule.names)
