"""What a program declares, as the input that a world is given: only where the world does not have it already."""

from __future__ import annotations

from worldline.features.domains.pure.domain_rows import DomainRow
from worldline.features.domains.pure.part import DomainDeclarations
from worldline.kernel.authoring.program import Program
from worldline.kernel.machine import Machine


def news(machine: Machine, program: Program) -> DomainDeclarations | None:
    """What is to be told to the world; None if it has all of it, or never had a flow domain."""
    known = machine.domains
    if not program.domains and not known.had:
        return None
    made = DomainDeclarations(
        {name: DomainRow(each.hash, each.keyed, each.parallel, each.actions) for name, each in program.domains.items()},
        # The world keeps a document that it was given, under its hash
        {each.hash: each.raw for each in program.domains.values() if each.hash not in known.documents},
        alone=not program.workflows and not program.reducers,
        deadlines={
            name: each.total_timeout_us for name, each in program.effects.items() if each.total_timeout_us is not None
        },
        snapshots=sorted(name for name, each in program.effects.items() if each.signature.snapshot is not None),
    )
    has = known.current, known.alone, known.deadlines, known.snapshots
    same = has == (made.domains, made.alone, made.deadlines, made.snapshots)
    return None if same and not made.documents else made
