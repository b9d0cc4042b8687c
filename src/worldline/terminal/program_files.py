"""Finding programs in a user's file: `app.py`, or `app.py:name` for one of several; and what they may reach, `egress`.

The file is imported as a module of its own name, with its folder on the path, as Python itself would; its main guard
does not run. Loading it again imports it and its neighbours anew. Hashes are taken at once, while the source on disk is
the one that was imported.

Whatever the user's file raises becomes one `BadInput` that names the line. A file that runs itself when it is imported
(`asyncio.run(...)` or `sys.exit(...)` outside a main guard) is refused with that advice: the import always happens
while an event loop runs, where asyncio refuses to start another.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import inspect
import linecache
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import msgspec

from worldline.base import errors
from worldline.effects.egress import Egress
from worldline.kernel.authoring.program import Program
from worldline.terminal import file_trust

_loaded: dict[Path, list[str]] = {}  # the modules that loading a file brought in, itself included


class LoadedPrograms(msgspec.Struct, frozen=True):
    """The programs of one file, the files their code is in, and what their effects may reach."""

    path: Path
    programs: list[Program]
    files: list[Path]
    egress: Egress | None = None


def load(target: str) -> LoadedPrograms:
    """Import the file that `FILE` or `FILE:name` names and find its programs."""
    path, name = split(target)
    if not path.is_file():
        raise errors.BadInput(f"there is no file {path}; name the Python file that declares your program")
    path = path.resolve()  # one file is loaded once, whichever way leads to it
    module = _import(path)
    programs = [_named(path, module, name)] if name else _all(module)
    if not programs:
        raise errors.BadInput(f"{path.name} declares no program; write app = worldline.Program('name') in it")
    for program in programs:  # before an editor saves the next version: hashes must be of the source that runs
        _settle(path, program)
    return LoadedPrograms(path, programs, [path, *_neighbours(path)], _egress(path, module))


def load_member(path: Path, name: str) -> object | None:
    """Import a file, which need not declare a program, and give what it calls by this name, if anything."""
    if not path.is_file():
        raise errors.BadInput(f"there is no file {path}")
    return getattr(_import(path.resolve()), name, None)


def import_member(module: str, name: str) -> object | None:
    """Return what a module, on the path of Python or in this folder, calls by this name, if anything."""
    # Else importlib raises something that names neither the file nor the word.
    if not all(part.isidentifier() for part in module.split(".")):
        raise errors.BadInput(f"there is no file {module}, and no module is called so")
    if "" not in sys.path:
        file_trust.check(Path.cwd(), "this folder as a place of modules")
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name, None)
    except (Exception, SystemExit) as error:
        raise errors.BadInput(f"{module} cannot be imported: {type(error).__name__}: {error}") from error


def load_all(targets: Sequence[str]) -> list[Program]:
    """The programs of several files, each once."""
    found: list[Program] = []
    for target in targets:
        found += [program for program in load(target).programs if program not in found]
    return found


def egress_of(targets: Sequence[str]) -> Egress | None:
    """Return what the files of these targets, loaded before, say that their effects may reach."""
    found: Egress | None = None
    for path in dict.fromkeys(split(target)[0].resolve() for target in targets):
        said = _egress(path, sys.modules[_loaded[path][0]])
        if said is not None and found is not None and said != found:
            raise errors.BadInput(f"{path.name} has another egress than the file before it; one process has one")
        found = said or found
    return found


def member(loaded: LoadedPrograms, name: str) -> object | None:
    """Return what a loaded file calls by this name, if anything."""
    return getattr(sys.modules[_loaded[loaded.path][0]], name, None)


def split(target: str) -> tuple[Path, str]:
    """`FILE` or `FILE:name`, taken apart."""
    before, colon, after = target.rpartition(":")  # from the right: a path may have a colon itself
    if colon and after.isidentifier() and before:
        return Path(before), after
    return Path(target), ""


def _named(path: Path, module: ModuleType, name: str) -> Program:
    found = getattr(module, name, None)
    if not isinstance(found, Program):
        raise errors.BadInput(f"{path.name} has no program called {name!r}; it has {_names(module) or 'none'}")
    return found


def _egress(path: Path, module: ModuleType) -> Egress | None:
    """The file's own `egress = wl.ops.Egress(...)`, if it has one. A process that hosts the file uses it."""
    found = getattr(module, "egress", None)
    if isinstance(found, Egress):
        return found
    if found is None or isinstance(found, ModuleType) or callable(found):  # the name means something else in that file
        return None
    raise errors.BadInput(f"{path.name}: egress must be a worldline.ops.Egress(...), not {type(found).__name__}")


def _all(module: ModuleType) -> list[Program]:
    found: list[Program] = []
    for value in vars(module).values():
        if isinstance(value, Program) and value not in found:
            found.append(value)
    return found


def _names(module: ModuleType) -> str:
    return ", ".join(name for name, value in vars(module).items() if isinstance(value, Program))


def _settle(path: Path, program: Program) -> None:
    """Read from the source now what is needed of it, before it is edited."""
    try:
        assert program.hash
        assert program.routes is not None
    except errors.Error as error:
        raise errors.BadInput(f"{path.name}: {error}") from error


def _import(path: Path) -> ModuleType:
    _forget(path)
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise errors.BadInput(f"{path} is not a Python file; name the file that declares your program")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # neighbours are imported as Python does when it runs the file
    # A compiled file of this load could be taken for the next version's.
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.modules[name] = module  # before it runs, as the import system does: classes look their module up
    before = dict.fromkeys(sys.modules)
    try:
        _execute(functools.partial(spec.loader.exec_module, module))
    except (Exception, SystemExit) as error:
        if _runs_itself(error):
            raise errors.BadInput(_main_guard_missing(path, error)) from error
        raise errors.BadInput(f"{path.name} cannot be loaded: {_where(path, error)}") from error
    finally:
        sys.dont_write_bytecode = writes
        # Also after a failure: modules that were half imported must go before the next attempt.
        _loaded[path] = [name, *(each for each in sys.modules if each not in before and _is_neighbour(each, path))]
    return module


def _execute(code: Callable[[], None]) -> None:
    """Run a module's code where an event loop runs, so that starting one in it fails and does not run the program."""

    async def within_a_loop() -> None:
        code()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(within_a_loop())
    else:
        code()


def _runs_itself(error: BaseException) -> bool:
    """Whether the file tried to start an event loop, or to end the process. Coroutines made for that are closed."""
    if isinstance(error, SystemExit):
        return True
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    folder = str(Path(asyncio.__file__).parent)
    if not isinstance(error, RuntimeError) or not frames[-1].f_code.co_filename.startswith(folder):
        return False
    for value in [value for frame in frames for value in frame.f_locals.values()]:
        if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
            value.close()  # else Python warns that it was never awaited
    return True


def _main_guard_missing(path: Path, error: BaseException) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    at = f" (line {lines[0]})" if lines else ""
    return f'{path.name} runs itself when it is imported{at}: put that under `if __name__ == "__main__":`'


def _forget(path: Path) -> None:
    """Drop what an earlier load brought in. Compiled files go too: two edits in a second look the same to them."""
    for name in _loaded.pop(path, []):
        module = sys.modules.pop(name, None)
        file = getattr(module, "__file__", None)
        if file is not None:
            Path(importlib.util.cache_from_source(file)).unlink(missing_ok=True)
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
    linecache.clearcache()  # tracebacks and hashes read source lines from it: they would be of the old version


def _module_name(path: Path) -> str:
    """The file's own name, so that its neighbours can import it; another if a different module has that name."""
    for other, names in list(_loaded.items()):
        if other != path and names[0] == path.stem:
            _forget(other)  # another project's file of the same name, loaded before: its turn is over
    return path.stem if path.stem not in sys.modules else f"worldline_app_{path.stem}"


def _neighbours(path: Path) -> list[Path]:
    files = [getattr(sys.modules.get(name), "__file__", None) for name in _loaded[path][1:]]
    return [Path(file) for file in files if file is not None]


def _is_neighbour(name: str, path: Path) -> bool:
    file = getattr(sys.modules[name], "__file__", None)
    if file is None:  # built into Python, or made in memory: it cannot be reloaded from a file
        return False
    found = Path(file)
    # A virtual environment in the project's folder is no part of its code, and reloading it would break what uses it.
    return found.is_relative_to(path.parent) and "site-packages" not in found.parts


def _where(path: Path, error: BaseException) -> str:
    """The last line of the user's own file that was running, and what it raised."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = f"line {frames[-1].lineno}: " if frames else ""
    return f"{line}{type(error).__name__}: {error}"
