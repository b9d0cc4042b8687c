"""What the worlds of a universe may do: rules over messages and effects.

A world may do everything that no rule is against. A DENY rule takes something away. An ONLY rule names all that its
worlds may do of a kind, together with the other ONLY rules that are about the same world. DENY goes before ONLY, so the
order of rules makes no difference.

::

        kind      whose                        peers               what
    SEND      worlds that send             where to            messages, by schema, or `inbox:` and an inbox
    RECEIVE   worlds that are sent to      who sends           the same
    EFFECT    worlds that ask for effects  -                   effects, by name

Answers to questions are no messages here, and what the runtime performs for itself (`worldline.reply`,
`worldline.share`) is no effect: a question that was let through may be answered.
"""

from __future__ import annotations

import enum

import msgspec

ANY = "*"


class Verb(enum.IntEnum):
    """Numbers are stored and never reused."""

    DENY = 1
    ONLY = 2


class PolicyScope(enum.IntEnum):
    """What a rule is about. Numbers are stored and never reused."""

    SEND = 1
    RECEIVE = 2
    EFFECT = 3


class PolicyRule(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One rule. `number` is that of the change that added it. The rest are patterns: text that must be equal, or that
    ends in `*` and must be the beginning.
    """

    number: int
    verb: Verb
    scope: PolicyScope
    worlds: str  # whose, by name
    programs: str  # of which programs; any for RECEIVE
    peers: str  # with which worlds: a name, or as a sender writes it, `universe/world`; any for EFFECT
    names: str  # which messages or effects

    def is_about(self, *, world: str, program: str) -> bool:
        return fits(self.worlds, world) and fits(self.programs, program)

    def covers(self, *, peer: str, name: str) -> bool:
        return fits(self.peers, peer) and fits(self.names, name)


class Bounds(msgspec.Struct, frozen=True):
    """What one world may do, by the rules that concern it. A world without any has no such record."""

    world: str
    sends: list[PolicyRule]
    receives: list[PolicyRule]  # of the worlds that it may send to
    effects: list[PolicyRule]

    def why_no_message(self, *, to: str, name: str, near: bool) -> str | None:
        """Why the world may not send this there. `near`: to a world of the same universe, which rules may protect."""
        why = _refusal(self.sends, peer=to, name=name)
        if why is None and near and self.receives:
            theirs = [each for each in self.receives if fits(each.worlds, to)]
            why = _refusal(theirs, peer=self.world, name=name)
        return None if why is None else f"world {self.world!r} may not send {name} to {to!r}: {why}"

    def why_no_effect(self, name: str) -> str | None:
        """Why the world may not ask for this effect."""
        why = _refusal(self.effects, peer="", name=name)
        return None if why is None else f"world {self.world!r} may not use {name}: {why}"


def bounds_of(rules: list[PolicyRule], *, world: str, program: str) -> Bounds | None:
    """What is left of a policy for one world; None if nothing of it concerns this one."""
    mine = [
        each for each in rules if each.scope is not PolicyScope.RECEIVE and each.is_about(world=world, program=program)
    ]
    found = Bounds(
        world,
        sends=[each for each in mine if each.scope is PolicyScope.SEND],
        receives=[each for each in rules if each.scope is PolicyScope.RECEIVE],
        effects=[each for each in mine if each.scope is PolicyScope.EFFECT],
    )
    return found if found.sends or found.receives or found.effects else None


def _refusal(rules: list[PolicyRule], *, peer: str, name: str) -> str | None:
    """Which of the rules that are about a world is against this, in words."""
    only: list[PolicyRule] = []
    for each in rules:
        if each.verb is Verb.ONLY:
            only.append(each)
        # A DENY decides at once, whatever the ONLY rules say.
        elif each.covers(peer=peer, name=name):
            return f"rule {each.number} of its universe denies it"
    if not only or any(each.covers(peer=peer, name=name) for each in only):
        return None
    numbers = ", ".join(str(each.number) for each in only)
    return f"it is not among what rule {numbers} of its universe allows"


def fits(pattern: str, text: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith(ANY) else text == pattern
