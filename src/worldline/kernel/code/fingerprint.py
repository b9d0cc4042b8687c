"""The program hash: a digest of a program's code, so that a change of behaviour is noticed.

It covers the normalised syntax of every workflow and handler, of the functions and classes of the same package that
they mention, and theirs; the constants they use; the fields of their types; and what effects take. Formatting,
comments, docstrings, annotations of functions and the order of declarations do not count, nor does the release of
Python. Effects and workflows count by the names they are declared under, wherever they are mentioned, so their
functions can be renamed. Where the source is missing (an interactive session), the compiled code stands in for it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, Protocol

from worldline.base import call_signatures, errors
from worldline.codec import digest
from worldline.kernel import user_values
from worldline.kernel.code import source

_OWN = "worldline"
_PLAIN = (bool, int, float, str, bytes, tuple, list, dict, frozenset, set, type(None))
Resolve = Callable[[ast.expr], Any]  # what an expression stands for

_NOT_CODE = ("ctx", "type_comment", "kind", "lineno", "col_offset", "end_lineno", "end_col_offset")


class HashedHandler(Protocol):
    @property
    def schema(self) -> str: ...
    @property
    def event(self) -> Any: ...
    @property
    def inbox(self) -> str: ...


class HashedReducer(Protocol):
    @property
    def key(self) -> str | None: ...
    @property
    def cls(self) -> Any: ...
    @property
    def handlers(self) -> Sequence[HashedHandler]: ...


class HashedDomain(Protocol):
    @property
    def keyed(self) -> bool: ...
    @property
    def parallel(self) -> bool: ...
    @property
    def raw(self) -> bytes: ...


class HashedProgram(Protocol):
    """What of a program has a hash. The program itself, in `authoring/program.py`, imports this file."""

    @property
    def name(self) -> str: ...
    @property
    def effects(self) -> Mapping[str, source.CallTarget]: ...
    @property
    def workflows(self) -> Mapping[str, source.CallTarget]: ...
    @property
    def reducers(self) -> Mapping[str, HashedReducer]: ...
    @property
    def domains(self) -> Mapping[str, HashedDomain]: ...


def program_hash(program: HashedProgram) -> bytes:
    parts = [program.name.encode()]
    homes: source.Homes = {}
    # Sorted by name: the order of declarations does not count.
    for name, effect in sorted(program.effects.items()):
        parts += [b"effect", name.encode(), *_parameters(effect)]
    for name, flow in sorted(program.workflows.items()):
        parts += [b"workflow", name.encode(), *_texts(flow.function, homes, name)]
    for name, reducer in sorted(program.reducers.items()):
        parts += [b"reducer", name.encode(), (reducer.key or "").encode(), *_texts(reducer.cls, homes)]
        for handler in reducer.handlers:
            parts += [handler.schema.encode(), *_texts(handler.event, homes)]
            # Only where there is one: programs without inboxes keep their hashes.
            if handler.inbox:
                parts += [b"inbox", handler.inbox.encode()]
    for name, domain in sorted(program.domains.items()):
        parts += [b"domain", name.encode(), bytes([domain.keyed, domain.parallel]), domain.raw]
    return digest.hash_parts(b"program", *parts)


def _texts(root: Any, homes: source.Homes, declared: str = "") -> Iterator[bytes]:
    """The code of something and of everything it mentions, each under its name, in the order of the names. `declared`:
    the name that the first of them has instead of its own.
    """
    module = _module(root)
    # Code of this package is not followed: its releases would change the hashes of users' programs.
    follows = source.home_of(module, homes) != _OWN
    todo, done = [root], dict[tuple[str, str], bytes]()
    while todo:
        thing = todo.pop()
        label = thing.__qualname__
        if thing is root and declared:
            label = f"{label[: len(label) - len(thing.__name__)]}{declared}"
        name = (label, _module(thing))
        if name in done:
            continue
        done[name] = b""
        said, mentions = _class(thing) if isinstance(thing, type) else _function(thing, declared * (thing is root))
        constants = sorted(text for each in mentions if (text := _constant(each)))
        done[name] = digest.hash_parts(b"text", said, *dict.fromkeys(constants))
        found = [each for each in map(_followed, mentions) if each is not None and follows]
        todo += [each for each in found if source.is_at_home(each, module, homes)]
    # Not the module, also for the order: a script that is run has another one.
    for qualname, text in sorted((qualname, text) for (qualname, _), text in done.items()):
        yield qualname.encode()
        yield text


def _module(thing: Any) -> str:
    return str(getattr(thing, "__module__", ""))


def _followed(thing: Any) -> Any:
    """A function or class whose code belongs to the code that mentions it. Effects and workflows have their own."""
    if _module(thing).startswith(f"{_OWN}."):  # effects and workflows, too: they are objects of Worldline's own classes
        return None
    return thing if isinstance(thing, type) else source.unwrapped(thing)


def _function(function: FunctionType, declared: str) -> tuple[bytes, list[Any]]:
    tree = source.tree_of(function)
    mentions = list(source.mentioned(function, tree))
    scope = source.NameScope(function, tree)
    if tree is None:
        return _code(function.__code__, scope), mentions
    return _syntax(_renamed(tree, declared) if declared else tree, scope.resolve), mentions


def _renamed(tree: ast.Module, name: str) -> ast.Module:
    """Return the syntax of a function under another name."""
    outermost = tree.body[0]
    if not isinstance(outermost, ast.FunctionDef | ast.AsyncFunctionDef):
        return tree
    fields = dict(ast.iter_fields(outermost)) | {"name": name}
    return ast.Module([ast.copy_location(type(outermost)(**fields), outermost), *tree.body[1:]], tree.type_ignores)


def _declared(node: ast.Name | ast.Attribute, resolve: Resolve) -> ast.Name | ast.Attribute:
    """A mention of an effect or workflow, by the name it is declared under. Anything else as it is."""
    found = resolve(node)
    if not source.is_target(found):
        return node
    if isinstance(node, ast.Name):
        return ast.Name(found.name, node.ctx)
    return ast.Attribute(node.value, found.name, node.ctx)


def _class(cls: type) -> tuple[bytes, list[Any]]:
    """A class by its source, or else by its fields and methods; with its bases and the types of its fields."""
    tree = source.tree_of(cls)
    mentions: list[Any] = [base for base in cls.__bases__ if base is not object]
    methods = [found for each in vars(cls).values() if (found := source.unwrapped(each)) is not None]
    scopes = []
    for method in methods:
        if method.__qualname__.startswith(cls.__qualname__ + "."):
            text = source.tree_of(method)
            mentions += source.mentioned(method, text)
            scopes.append(source.NameScope(method, text))
    mentions += _types(cls)
    if tree is not None:
        return _syntax(tree, functools.partial(_resolved, scopes)), mentions
    fields = [f"{name}: {kind}" for name, kind in call_signatures.annotations_of(cls).items()]
    codes = [_code(each.__code__, source.NameScope(each, None)) for each in methods]
    return digest.hash_parts(b"class", *map(str.encode, fields), *codes), mentions


def _resolved(scopes: list[source.NameScope], node: ast.expr) -> Any:
    """What an expression in a class stands for: an effect or workflow, if it is one to any of its methods."""
    for scope in scopes:
        found = scope.resolve(node)
        if source.is_target(found):
            return found
    return source.UNKNOWN


def _types(cls: type) -> Iterator[Any]:
    """Yield the classes that a class's own annotations name, at any depth."""
    todo: list[Any] = []
    for annotation in call_signatures.annotations_of(cls).values():
        todo.append(_annotation(cls, annotation))
    while todo:
        kind = todo.pop()
        todo += getattr(kind, "__args__", ())
        if isinstance(kind, type):
            yield kind


def _annotation(cls: type, annotation: Any) -> Any:
    # Only annotations in quotes, or postponed ones, are text.
    """Return an annotation as an object, its names looked up in the module of the class; an empty one if that fails."""
    if not isinstance(annotation, str):
        return annotation
    module = inspect.getmodule(cls)
    names = vars(module) if module is not None else {}
    found = []
    for node in ast.walk(ast.parse(annotation, mode="eval")):
        if isinstance(node, ast.Name) and node.id in names:
            found.append(names[node.id])
    return type("Named", (), {"__args__": tuple(found)})()


def _parameters(effect: source.CallTarget) -> Iterator[bytes]:
    """What an effect takes and answers. What it does, and with which resources, is not part of the world."""
    signature = effect.signature.parameters
    for name, parameter in signature.parameters.items():
        default = "" if parameter.default is parameter.empty else f" = {_constant(parameter.default)!r}"
        yield f"{parameter.kind.name} {name}: {_type_name(parameter.annotation)}{default}".encode()
    yield _type_name(signature.return_annotation).encode()


def _type_name(annotation: Any) -> str:
    if isinstance(annotation, typing.ForwardRef):  # it was not defined yet: from Python 3.14 on
        return annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else str(getattr(annotation, "__qualname__", annotation))


def _constant(thing: Any) -> bytes:
    """A plain value as bytes; nothing for other objects, whose text does not determine their meaning."""
    if not isinstance(thing, _PLAIN):
        return b""
    try:
        return user_values.dump(thing)
    except errors.EncodeError:
        return b""


class _Written:
    """Bytes in their place between the nodes that are still to be written."""

    def __init__(self, data: bytes) -> None:
        self.data = data


def _syntax(tree: ast.AST, resolve: Resolve) -> bytes:
    return digest.hash_parts(b"syntax", *_written(tree, resolve))


def _written(tree: ast.AST, resolve: Resolve) -> Iterator[bytes]:
    """A syntax tree as a sequence, without the parts that do not change behaviour. A sum of a thousand terms is a tree
    so deep, which Python compiles: no frame of the stack for each.
    """
    left: list[Any] = [tree]
    while left:
        node = left.pop()
        if type(node) is _Written:
            yield node.data
        elif not isinstance(node, ast.AST):
            yield f"{type(node).__name__} {node!r}".encode()
        else:
            if isinstance(node, ast.Name | ast.Attribute):
                node = _declared(node, resolve)
            yield b"(" + type(node).__name__.encode()
            left += reversed([*_inside(node), _Written(b")")])


def _inside(node: ast.AST) -> Iterator[Any]:
    for field, value in ast.iter_fields(node):
        if field in _NOT_CODE or value is None or value == [] or _is_noise(node, field):
            continue
        yield _Written(field.encode())
        each = _body(node, value) if field == "body" else value
        yield from each if isinstance(each, list) else [each]


def _is_noise(node: ast.AST, field: str) -> bool:
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    if isinstance(node, functions | ast.ClassDef) and field == "decorator_list":
        return True
    return (isinstance(node, functions) and field == "returns") or (isinstance(node, ast.arg) and field == "annotation")


def _body(node: ast.AST, statements: Any) -> Any:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
        return statements[1:]
    return statements


def _code(code: CodeType, scope: source.NameScope) -> bytes:
    """Compiled code without where it stands."""
    constants = [_code(each, scope) if isinstance(each, CodeType) else _constant(each) for each in code.co_consts]
    found = {name: scope.named(name) for name in code.co_names}
    names = [each.name if source.is_target(each) else name for name, each in found.items()]
    return digest.hash_parts(b"code", code.co_code, " ".join(names).encode(), *constants)
