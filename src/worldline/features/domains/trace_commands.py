"""`worldline trace`: what the jobs of a world's flow domains did. The journal is run again; nothing is written."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from worldline.base import errors, limits
from worldline.features.domains import stored_trace
from worldline.features.domains.pure.job_trace import GRAPH, Trace, TraceEvent, TraceFilter
from worldline.model import row_keys
from worldline.terminal import command_session
from worldline.terminal.command_session import CommandSession

_HEIGHT = click.IntRange(min=0)
_VALUE_CHARACTERS_MAX = 100
_APART = ("intentId", "jobId", "job", "graph")  # fields that are said otherwise, or are too large for a line


@command_session.command("trace", app=True)
@click.argument("world")
@click.option("--domain", default="", metavar="DOMAIN", help="Only of this flow domain.")
@click.option("--key", metavar="KEY", help="Only of the cell with this key; '' where there is one cell.")
@click.option("--intent", default="", metavar="ID", help="Only of this intent.")
@click.option("--above", type=_HEIGHT, metavar="HEIGHT", help="Of steps that end above this height.")
@click.option("--up-to", type=_HEIGHT, metavar="HEIGHT", help="Of steps that end at or below this height.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Of the last N entries.  [default: 1000]")
@click.option("--graph", is_flag=True, help="With Core's trace of every compute, node by node.")
async def trace(
    desk: CommandSession,
    *,
    world: str,
    domain: str,
    key: str | None,
    intent: str,
    above: int | None,
    up_to: int | None,
    last: int | None,
    graph: bool,
) -> None:
    """Show what the jobs of flow domains did, event by event.

    The journal is run again, so it says what happened. A world of flow domains alone needs no program.
    """
    if above is not None and last is not None:
        raise errors.BadInput("--above says where it begins, and --last how far back: give one of them")
    async with desk.open() as universe:
        found = await stored_trace.trace(
            await desk.world(universe, world),
            TraceFilter(domain, key, intent, graph),
            above=above,
            up_to=up_to,
            last=last or limits.FLOW_TRACE_ENTRIES,
        )
    desk.out.one({"world": world, **msgspec.structs.asdict(found)}, [_line(each) for each in found.events])
    for gap in found.gaps:
        desk.out.note(f"heights {gap.first} to {gap.last} are not in it: {gap.why}; name its file with --app FILE")
    for note in _notes(found):
        desk.out.note(note)


def _notes(found: Trace) -> list[str]:
    said = [] if found.events else [f"no events above height {found.above}; begin further below with --above HEIGHT"]
    if found.cut:
        said.append(f"the step that ends at height {found.height} has more events than are shown")
    return [*said, f"there is more: go on with --above {found.height}"] if found.more else said


def _line(event: TraceEvent) -> str:
    if event.type == GRAPH:
        nodes = event.fields["graph"]["nodes"].values()
        return "\n".join(_node(each) for each in nodes)
    said = [f"{name}={_value(value)}" for name, value in event.fields.items() if name not in _APART and value != {}]
    whose = row_keys.cell_name(event.domain, event.key)
    return " ".join([f"{event.height:>6}", whose, event.intent or "-", event.type, *said])


def _node(node: dict[str, Any]) -> str:
    inputs = " ".join(f"{name}={_value(value)}" for name, value in node["inputs"].items())
    return f"{'':>6}   {node['sourcePath']} {node['kind']} {inputs} -> {_value(node['output'])}"


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _VALUE_CHARACTERS_MAX else f"{text[:_VALUE_CHARACTERS_MAX]}..."
