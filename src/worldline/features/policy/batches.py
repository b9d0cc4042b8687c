"""The policy of a universe: rules over what its worlds may do.

They stand in the record of the grants (`layers/universes.py`), and each change of them in its log. A holder of a world
reads the record after it has acquired the world's lease, and keeps what concerns that world. It does not read it again:
a change fences off every holder in the universe before it is acknowledged (`leases.fence_off`), so each of them
acquires its worlds again, and reads the new record then. So a step costs nothing where there is no policy, and no step
that commits after the acknowledgement was made under the policy before.

What is refused becomes an answer, an error receipt in the inbox of the world itself, by the commit of the step that
asked for it: it is journaled as what it is, an outcome, and a replay asks no policy.
"""

from __future__ import annotations

import msgspec

from worldline.base import errors, limits
from worldline.layers import universes, worlds
from worldline.model import ids, policy
from worldline.model import world_records as model
from worldline.store import kv


class PolicyRecords(msgspec.Struct, frozen=True):
    """What was read of a policy and of the world that it is for."""

    at: ids.Address
    meta: bytes | None
    grants: bytes | None
    newest: kv.Page


def reads(at: ids.Address) -> tuple[kv.Get, kv.Get, kv.Range]:
    """What a `PolicyRecords` is made of, in order."""
    universe = at.universe
    return worlds.get(at), universes.get_grants(universe), universes.newest_grant_change(universe)


def bounds(policy_records: PolicyRecords, *, program: str) -> policy.Bounds | None:
    """What the world may do; None if there is nothing that it may not. `Corrupt` as in `universes.decode_grants`."""
    record = universes.decode_grants(policy_records.at.universe, policy_records.grants, policy_records.newest).grants
    # Without rules, a step is asked nothing.
    if not record.rules:
        return None
    world = worlds.find(policy_records.at, policy_records.meta)
    name = "" if world is None else world.meta.name
    return policy.bounds_of(record.rules, world=name, program=program)


def add_rule(batch: kv.Batch, record: universes.Granted, rule: policy.PolicyRule, *, time_us: int) -> policy.PolicyRule:
    """Add a rule, and give it its number. Guard: the record as it was read."""
    if len(record.grants.rules) >= limits.RULES_MAX:
        raise errors.TooLarge("the rules of a universe", size=limits.RULES_MAX + 1, limit=limits.RULES_MAX)
    # The number of the change, so none is given twice, whatever was dropped since.
    added = msgspec.structs.replace(rule, number=record.grants.changes + 1)
    _change(batch, record, [*record.grants.rules, added], added, added=True, time_us=time_us)
    return added


def drop_rule(batch: kv.Batch, record: universes.Granted, rule: policy.PolicyRule, *, time_us: int) -> None:
    """Take a rule away. Guard: the record as it was read."""
    left = [each for each in record.grants.rules if each.number != rule.number]
    _change(batch, record, left, rule, added=False, time_us=time_us)


def _change(
    batch: kv.Batch,
    record: universes.Granted,
    rules: list[policy.PolicyRule],
    changed: policy.PolicyRule,
    *,
    added: bool,
    time_us: int,
) -> None:
    number = record.grants.changes + 1
    after = model.Grants(number, record.grants.grants, rules)
    universes.change_grants(batch, record, after, model.GrantChange(number, added, [], time_us, [changed]))
