"""Which domain a command is about: a document in a JSON file, or a class, as FILE.py:Class or module:Class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from worldline.base import errors
from worldline.flow_core import validation
from worldline.flow_core.authoring import domain_class
from worldline.flow_core.compiled_document import Compiled
from worldline.terminal import payloads, program_files

NAMED = "order.json, shop.py:Order or package.module:Order"


def document(target: str) -> Any:
    """What a target says, which may be no valid document. Raises `BadInput`, also for a class that is none."""
    path, name = program_files.split(target)
    if not name:
        return read(path)
    in_file = path.suffix == ".py" or path.is_file()
    found = program_files.load_member(path, name) if in_file else program_files.import_member(str(path), name)
    if not isinstance(found, type) or not issubclass(found, domain_class.Domain):
        raise errors.BadInput(f"{target} is no class that derives from flow.Domain")
    return found.document()


def compiled(target: str) -> Compiled:
    """A target, which must be valid."""
    return validation.load(document(target))


def read(path: Path) -> Any:
    """The value in a JSON file."""
    return payloads.read_file(path, advice=f"; name a domain as {NAMED}")
