"""Write the API reference, docs/reference/, from the docstrings of the public names.

`make reference` writes the files; `tests/docs/test_reference.py` compares them with what this makes. A public name is
one that `__all__` of a module of `MODULES` has; of a class, also every method, property and field without an underscore
in front, with what it inherits from other classes of this package.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

import worldline
from worldline import errors, flow, ops, testing

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
MODULES = {
    "worldline": worldline,
    "worldline.errors": errors,
    "worldline.ops": ops,
    "worldline.testing": testing,
    "worldline.flow": flow,
}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_OWN = "worldline."
# Names that are neither a class nor a function, and have no docstring.
NOTES = {
    "worldline.log": "The log of user code: `wl.log.info(...)`, in workflows, handlers, effects; a replay is silent.",
    "worldline.flow.GIVEN": "The default of an effect's parameter `snapshot`: such an effect is given the snapshot.",
    "worldline.flow.Handler": "What performs an effect of a domain: it gets an `EffectCall`, and returns patches.",
}
_MADE = "Made from docstrings: change those, and type `make reference`."


def main() -> None:
    """Write every page."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)


def pages() -> dict[str, str]:
    """Every page of the reference, by the name of its file."""
    made = {f"{name.rpartition('.')[2]}.md": _page(name, module) for name, module in MODULES.items()}
    made["README.md"] = _index(made)
    return made


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class, with those of its bases in this package, by name."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if not base.__module__.startswith(_OWN):
            continue
        for name, value in vars(base).items():
            if not name.startswith("_") and _is_callable(value):
                found[name] = value
    yield from sorted(found.items())


def undocumented() -> list[str]:
    """Public names, methods and properties that have no docstring of their own."""
    return [
        where
        for module, names in MODULES.items()
        for name in names.__all__
        for where in _undocumented(f"{module}.{name}", getattr(names, name))
    ]


def functions() -> Iterator[tuple[str, str]]:
    """Every public function and method with its docstring; not properties, nor `flow.x`, whose functions are values."""
    for module, names in MODULES.items():
        for name in names.__all__:
            value = getattr(names, name)
            if isinstance(value, type):
                methods = [(each, found) for each, found in members(value) if not isinstance(found, property)]
                yield from ((f"{module}.{name}.{each}", _doc(found)) for each, found in methods)
            elif inspect.isroutine(value):
                yield f"{module}.{name}", _doc(value)


def _undocumented(where: str, value: Any) -> Iterator[str]:
    if isinstance(value, type):
        if not _own_doc(value):
            yield where
        yield from (f"{where}.{name}" for name, each in members(value) if not _doc(each))
    elif isinstance(value, types.ModuleType):
        if not _doc(value):
            yield where
        yield from (f"{where}.{name}" for name, each in _functions(value) if not _doc(each))
    elif not (_doc(value) if inspect.isroutine(value) else NOTES.get(where)):
        yield where


# --- Pages ---------------------------------------------------------------------------------------------------------


def _index(made: dict[str, str]) -> str:
    lines = ["# API reference", "", f"{_MADE} The [guide](../guide/README.md) says how they are used.", ""]
    titles = {file: text.partition("\n")[0].removeprefix("# ") for file, text in made.items()}
    listed = [f"- [{title}]({file})" for file, title in titles.items()]
    return "\n".join([*lines, *listed, "- [Settings](../settings.md)"]) + "\n"


def _page(name: str, module: types.ModuleType) -> str:
    lines = [f"# {name}", "", _MADE, "", *_paragraphs(_doc(module)), ""]
    values = {each: getattr(module, each) for each in sorted(module.__all__)}
    kinds: dict[str, Callable[[Any], bool]] = {
        "Functions": inspect.isroutine,
        "Modules": lambda value: isinstance(value, types.ModuleType),
        "Classes": lambda value: isinstance(value, type) and not issubclass(value, BaseException),
        "Exceptions": lambda value: isinstance(value, type) and issubclass(value, BaseException),
        "Values": lambda value: not isinstance(value, type | types.ModuleType) and not inspect.isroutine(value),
    }
    for title, belongs in kinds.items():
        chosen = {each: value for each, value in values.items() if belongs(value)}
        if chosen:
            lines += [f"## {title}", ""]
        for each, value in chosen.items():
            lines += _entry(each, value, NOTES.get(f"{name}.{each}", ""))
    return "\n".join(lines).rstrip() + "\n"


def _entry(name: str, value: Any, note: str) -> list[str]:
    if isinstance(value, types.ModuleType):
        lines = [f"### {name}", "", *_paragraphs(_doc(value)), ""]
        for each, function in _functions(value):
            lines += [f"- `{name}.{each}{_signature(function)}`: {_flowing(_doc(function))}"]
        return [*lines, ""]
    if isinstance(value, type):
        return _class(name, value)
    if inspect.isroutine(value):
        return [f"### {name}", "", f"`{name}{_signature(value)}`", "", *_paragraphs(_doc(value)), ""]
    return [f"### {name}", "", note, ""]


def _class(name: str, cls: type) -> list[str]:
    own = [base.__name__ for base in cls.__bases__ if base.__module__.startswith(_OWN)]
    bases = [each for each in own if each[0] != "_" and each != name]
    of = f" ({', '.join(bases)})" if bases else ""
    lines = [f"### {name}{of}", "", *_paragraphs(_own_doc(cls)), ""]
    if issubclass(cls, enum.Enum):
        lines += [", ".join(f"`{each.name}`" for each in cls), ""]
    fields = _fields(cls)
    if fields:
        lines += [f"Fields: {', '.join(f'`{each}{_declared(cls, each)}`' for each in fields)}.", ""]
    attributes = [each for each in _attributes(cls) if each not in fields and each not in dict(members(cls))]
    if attributes:
        lines += [f"Attributes: {', '.join(f'`{each}`' for each in attributes)}.", ""]
    for each, value in members(cls):
        if each in fields:
            continue
        if isinstance(value, property):
            lines += [f"- `{each}`: {_flowing(_doc(value))}"]
        else:
            lines += [f"- `{_asynchronous(value)}{each}{_signature(value)}`: {_flowing(_doc(value))}"]
    return [*lines, ""]


# --- Parts ---------------------------------------------------------------------------------------------------------


def _functions(module: types.ModuleType) -> list[tuple[str, Any]]:
    """The public functions of a module that is a public name."""
    names = getattr(module, "__all__", None) or [each for each in vars(module) if not each.startswith("_")]
    found = [(name, getattr(module, name)) for name in sorted(names)]
    own = [(name, each) for name, each in found if getattr(each, "__module__", "") == module.__name__]
    return [(name, each) for name, each in own if callable(each)]


def _fields(cls: type) -> list[str]:
    if issubclass(cls, msgspec.Struct):
        return [each for each in cls.__struct_fields__ if not each.startswith("_")]
    if dataclasses.is_dataclass(cls):
        return [each.name for each in dataclasses.fields(cls) if not each.name.startswith("_")]
    return []


def _attributes(cls: type) -> list[str]:
    """The public attributes that its `__init__`, or that of a base in this package, sets."""
    found: dict[str, None] = {}
    for base in cls.__mro__:
        made = vars(base).get("__init__")
        if not base.__module__.startswith(_OWN) or not isinstance(made, types.FunctionType):
            continue
        if not made.__code__.co_filename.endswith(".py"):
            continue  # what dataclasses make has no source
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(made)))):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and ast.unparse(node.value) == "self"
            ):
                found[node.attr] = None
    return [each for each in found if not each.startswith("_")]


def _declared(cls: type, field: str) -> str:
    """The type of a field, as it stands in the source."""
    for base in cls.__mro__:
        found = inspect.get_annotations(base).get(field)
        if found is not None:
            return f": {found if isinstance(found, str) else _type(found)}"
    return ""


def _is_callable(value: Any) -> bool:
    return isinstance(value, types.FunctionType | classmethod | staticmethod | property)


def _plain(value: Any) -> Any:
    return value.__func__ if isinstance(value, classmethod | staticmethod) else value


def _asynchronous(value: Any) -> str:
    function = _plain(value)
    return "await " if inspect.iscoroutinefunction(function) else ""


def _signature(value: Any) -> str:
    function = _plain(value)
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [each.replace(annotation=_bare(each.annotation)) for each in found.parameters.values()]
    if parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    shown = found.replace(parameters=parameters, return_annotation=_bare(found.return_annotation))
    return _ADDRESS.sub("", str(shown))


class _Bare:
    """An annotation as it stands in the source. Python shows one that was not evaluated in quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _bare(annotation: Any) -> Any:
    return _Bare(annotation) if isinstance(annotation, str) else annotation


def _type(kind: Any) -> str:
    """An annotation in a table."""
    if hasattr(kind, "__metadata__"):
        return _type(kind.__origin__)
    name = kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)
    return name.replace("typing.", "").replace("worldline.", "").replace(" | ", " or ")


def _own_doc(cls: type) -> str:
    """The docstring of the class itself; what dataclasses and enums make up is none."""
    found = inspect.cleandoc(vars(cls).get("__doc__") or "")
    return "" if found.startswith(f"{cls.__name__}(") else found


def _doc(value: Any) -> str:
    return inspect.cleandoc(_plain(value).__doc__ or "")


def _paragraphs(text: str) -> list[str]:
    return text.splitlines()


def _flowing(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    main()
