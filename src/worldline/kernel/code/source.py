"""Reading code: the syntax of functions and classes, and the objects that the names in them refer to.

Everything here reads code and never runs it. Where a question has no certain answer, the answer is `UNKNOWN`, or None
instead of a tree; the caller decides what that means.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, Protocol, TypeGuard, TypeVar

T = TypeVar("T")

_WRAPPERS_MAX = 100  # around one function; a circle of them ends here, too
_PARSES_MAX = 5
_CLASS_TEXTS_MAX = 256
_CLASS_TEXTS: dict[tuple[str, str, str | None, int | None], str] = {}  # by all that finding a class depends on
_SHARED = "<string>"  # the name of every text that `exec` or `python -c` is given; 3.13 remembers that of the latter
_PACKAGE = "worldline"
_CALLS = "worldline.kernel.authoring.calls"
UNKNOWN: Any = type("Unknown", (), {"__repr__": lambda _: "UNKNOWN"})()


class CallTarget(Protocol):
    """An effect or a workflow: an object of `authoring/calls.py` around a user's function."""

    @property
    def name(self) -> str: ...
    @property
    def function(self) -> Any: ...
    @property
    def signature(self) -> TargetSignature: ...


class TargetSignature(Protocol):
    @property
    def parameters(self) -> inspect.Signature: ...


def is_target(thing: Any) -> TypeGuard[CallTarget]:
    """Return whether it is an effect or a workflow. That file imports this one, so it is told by its name."""
    return any(each.__module__ == _CALLS and each.__qualname__ == "Target" for each in type(thing).__mro__)


def tree_of(thing: Callable[..., Any] | type) -> ast.Module | None:
    """Return the syntax of a function or class; None if its source is missing."""
    try:
        if inspect.getfile(thing) == _SHARED:  # what is remembered under it may be another text
            return None
        return parse(textwrap.dedent(_class_text(thing) if isinstance(thing, type) else inspect.getsource(thing)))
    except (OSError, TypeError, SyntaxError):
        return None


def _class_text(cls: type) -> str:
    """The source of a class. Python parses the whole file to find it: here, once for each class and text of a file."""
    file = inspect.getsourcefile(cls) or inspect.getfile(cls)
    # A file that was edited since has to be read again.
    linecache.checkcache(file)
    lines = linecache.getlines(file, vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else None)
    found_by = ("".join(lines), cls.__qualname__, cls.__doc__, vars(cls).get("__firstlineno__"))
    text = _CLASS_TEXTS.get(found_by)
    if text is None:
        # Emptied as a whole, because a class that is asked for again costs one parse.
        if len(_CLASS_TEXTS) >= _CLASS_TEXTS_MAX:
            _CLASS_TEXTS.clear()
        text = _CLASS_TEXTS[found_by] = _parsing(lambda: inspect.getsource(cls))
    return text


def parse(text: str) -> ast.Module:
    """Syntax of a text."""
    return _parsing(lambda: ast.parse(text))


def _parsing(do: Callable[[], T]) -> T:
    """What comes of a call that parses. Python 3.11 fails with `SystemError` if another thread parses something
    meanwhile, or if garbage is collected whose finaliser does, as printing a traceback: then it is done once more.
    """
    for _ in range(_PARSES_MAX - 1):
        try:
            return do()
        except SystemError:
            continue
    return do()


def unwrapped(thing: Any) -> FunctionType | None:
    """Return the plain function inside decorators that have `__wrapped__`, if there is one."""
    for _ in range(_WRAPPERS_MAX):
        # Read without running code: what users wrap may have properties and `__getattr__`.
        inner = thing.fget if isinstance(thing, property) else inspect.getattr_static(thing, "__wrapped__", None)
        # A slot of this name is no wrapped function.
        if inner is None or isinstance(inner, GetSetDescriptorType | MemberDescriptorType):
            inner = thing.__func__ if isinstance(thing, classmethod | staticmethod) else None
        if inner is None:
            break
        thing = inner
    return thing if isinstance(thing, FunctionType) else None


Homes = dict[str, str]  # of modules, as far as they are known


def place_of(function: Callable[..., Any]) -> str:
    """Return the file and line where a function is declared, for people; empty if it has no code of its own."""
    code = getattr(unwrapped(function), "__code__", None)
    return "" if code is None else f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"


def is_at_home(thing: Any, module: str, known: Homes) -> bool:
    """Return whether something belongs to this module, or to the package of the module."""
    its = str(getattr(thing, "__module__", ""))
    return its == module or home_of(its, known) == home_of(module, known)


def home_of(module: str, known: Homes) -> str:
    """The package that a module's code belongs to, or the module itself if it is in none. `known`: kept for as long as
    a program is read, in which nothing is imported.

    A file of a package that is run as a script, or loaded by its path, has another module name and the same home: the
    imported package whose folder it is in. If that package was not imported, nothing of it can be mentioned either.
    """
    home = known.get(module)
    if home is None:
        home = known[module] = _home_of(module)
    return home


def _home_of(module: str) -> str:
    top = module.partition(".")[0]
    # Of modules at the top, only packages have a path.
    if hasattr(sys.modules.get(top), "__path__"):
        return top
    file = getattr(sys.modules.get(module), "__file__", None)
    if not file:  # built in, or made by hand: in no folder
        return module
    for name in [each for each in sys.modules if "." not in each]:
        for folder in getattr(sys.modules.get(name), "__path__", ()):
            if file.startswith((f"{folder}/", f"{folder}\\")):
                return name
    return module


class NameScope:
    """What names mean inside a function."""

    def __init__(self, function: FunctionType, tree: ast.Module | None) -> None:
        self._globals = function.__globals__
        self._closed = _closed(function)
        self._local = dict.fromkeys(_assigned(tree)) if tree is not None else {}

    def resolve(self, node: ast.expr) -> Any:
        """The object that an expression of names and attributes refers to. Locals are unknown: they may be anything."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        found = self.named(node.id) if isinstance(node, ast.Name) else UNKNOWN
        while attributes and found is not UNKNOWN:
            name = attributes.pop()
            # Attributes are read without running properties of the user's.
            if isinstance(found, ModuleType) and found.__name__ == _PACKAGE:  # its names are loaded when they are used
                found = getattr(found, name, UNKNOWN)
            else:
                found = inspect.getattr_static(found, name, UNKNOWN)
        return found

    def named(self, name: str) -> Any:
        if name in self._closed:
            return self._closed[name]
        if name in self._local:
            return UNKNOWN
        return self._globals.get(name, getattr(builtins, name, UNKNOWN))


def mentioned(function: FunctionType, tree: ast.Module | None) -> Iterator[Any]:
    """Every object that a function's code mentions by name, directly or as an attribute, as far as it is known."""
    scope = NameScope(function, tree)
    if tree is None:
        for name in _names(function.__code__):
            yield scope.named(name)
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            yield scope.resolve(node)


def _closed(function: FunctionType) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            found[name] = UNKNOWN  # not assigned yet
    return found


def _assigned(tree: ast.Module) -> Iterator[str]:
    """Yield the names that are local to the function, or to functions inside it."""
    outermost = tree.body[0] if tree.body else None
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.ExceptHandler):
            yield node.name or ""
        # The outermost name is the function's own, which is not local to it.
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node is not outermost:
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]


def _names(code: CodeType) -> Iterator[str]:
    left = [code]
    while left:
        each = left.pop()
        yield from each.co_names
        yield from each.co_freevars
        left += [constant for constant in reversed(each.co_consts) if isinstance(constant, CodeType)]
