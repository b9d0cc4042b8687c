"""`worldline domain`: showing, checking and exporting a flow domain. No store is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from worldline.base import errors
from worldline.features.domains import command_targets
from worldline.flow_core import core, document_schema, faults, fields, flow_records, validation
from worldline.flow_core.compiled_document import Compiled
from worldline.flow_core.exporting import json_schema, mermaid, openapi, outline, tools
from worldline.terminal import command_session, output
from worldline.terminal.command_session import CommandSession

_TARGET = click.argument("target", metavar="FILE|CLASS")


@command_session.command("show")
@_TARGET
def show(desk: CommandSession, *, target: str) -> None:
    """Show the fields, computed values and actions of a domain."""
    found = outline.outline(command_targets.compiled(target))
    desk.out.one(found, outline.lines(found))


@command_session.command("validate")
@_TARGET
def validate(desk: CommandSession, *, target: str) -> int:
    """Say everything that is wrong with a document, one problem a line."""
    try:
        problems = tuple(validation.validate(command_targets.document(target)))
    except faults.SchemaRefused as refused:  # a class is validated when it is traced
        problems = refused.problems
    for each in problems:
        desk.out.one(each, [str(each)])
    if not problems:
        desk.out.note("nothing wrong")
    return output.NEGATIVE if problems else 0


@command_session.command("export")
@_TARGET
@click.option("--json-schema", "form", flag_value="json-schema", help="Of its data, and of each action's input.")
@click.option("--openapi", "form", flag_value="openapi", help="For a server of your own.")
@click.option("--tools", "form", flag_value="tools", help="What a model may call now, and why not the rest.")
@click.option("--mermaid", "form", flag_value="mermaid", help="A flowchart.")
@click.option(
    "--shape",
    type=click.Choice(tools.SHAPES),
    help="Whose tools.  [default: openai]",
)
@click.option("--data", type=click.Path(path_type=Path), metavar="FILE", help="Tools for this data; else the defaults.")
def export(desk: CommandSession, *, target: str, form: str | None, shape: str | None, data: Path | None) -> None:
    """Write a domain in another form; without one, its document."""
    if form != "tools" and (shape or data):
        raise errors.BadInput("--shape and --data go with --tools")
    found = command_targets.compiled(target)
    if form == "mermaid":
        text = mermaid.mermaid(found.schema)
        desk.out.one({"mermaid": text}, text.splitlines())
        return
    if form == "tools":
        said = _tools(found, shape or "openai", data)
    elif form == "openapi":
        said = openapi.openapi(found.schema)
    elif form == "json-schema":
        said = _schemas(found)
    else:
        said = dict(found.raw)
    desk.out.one(said, msgspec.json.format(msgspec.json.encode(said)).decode().splitlines())


def _schemas(found: Compiled) -> dict[str, Any]:
    inputs = {name: json_schema.input_schema(each) for name, each in found.schema.actions.items()}
    return {"data": json_schema.json_schema(found.schema), "inputs": inputs}


def _tools(found: Compiled, shape: str, file: Path | None) -> dict[str, Any]:
    chosen = next(each for each in get_args(tools.Shape) if each == shape)
    data = {} if file is None else command_targets.read(file)
    # All fields as one object, so that the data of a file is checked like any other value.
    every = document_schema.FieldSpec("object", True, fields=found.fields)
    if wrong := fields.misfit(every, data, "data", partial=True) if data is not None else "data is null":
        raise errors.BadInput(f"{file} is no data of this domain: {wrong}")
    said = tools.tools(found, core.created(found, data, flow_records.JobContext()), shape=chosen)
    return {"tools": said.documents, "unavailable": said.unavailable}


COMMANDS: list[click.Command] = [
    click.Group(
        "domain", commands=[show, validate, export], help="Flow domains: show, validate, export. Needs no store."
    )
]
