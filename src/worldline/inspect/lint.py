"""`worldline check FILE`: reading a program's source for what would not replay. Nothing of it is run.

Looked at are workflows, the methods of reducers, and the functions of the same file that they use. Effects may do as
they please. Each finding names the line, what is wrong with it and what to write instead. A line that ends in the
comment `# worldline: allow` is left alone.

A linter sees names, not values: it finds the plain cases, early. What it misses, replay finds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import msgspec

from worldline.base import errors
from worldline.inspect import lint_rules

ALLOW = "# worldline: allow"
DOMAIN = "worldline.flow.Domain"


class LintFinding(msgspec.Struct, frozen=True, order=True):
    file: str
    line: int
    column: int
    rule: str
    inside: str
    what: str
    instead: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what} in {self.inside}; {self.instead}"


def lint(text: str, file: str) -> list[LintFinding]:
    """Everything in this source that would not replay, in the order of its lines."""
    try:
        tree = ast.parse(text, filename=file)
    except SyntaxError as error:
        raise errors.BadInput(f"{file}:{error.lineno}: {error.msg}") from error
    module = Module(tree)
    lines = text.splitlines()
    problems = [("a reducer", problem) for problem in module.float_keys()]
    for inside, node, owner in module.watched():
        problems += [(inside, problem) for problem in LintScope(module, node, owner).problems()]
    found = [
        LintFinding(file, where.lineno, where.col_offset + 1, rule, inside, what, instead)
        for inside, (rule, where, what, instead) in problems
        if not lines[where.lineno - 1].rstrip().endswith(ALLOW)
    ]
    # A function that two workflows use has each of its problems once, and the same file gives the same list.
    return sorted(dict.fromkeys(found))


def domain_classes(text: str) -> list[str]:
    """The classes of this source that derive from `flow.Domain`: they are traced to be checked, so not from here."""
    tree = ast.parse(text)
    known = aliases(ast.walk(tree))
    found = []
    for node in [each for each in tree.body if isinstance(each, ast.ClassDef)]:
        for base in node.bases:
            first, _, rest = dotted(base).partition(".")
            if f"{known.get(first, first)}.{rest}".rstrip(".") == DOMAIN:
                found.append(node.name)
    return found


Function = ast.FunctionDef | ast.AsyncFunctionDef
Problem = tuple[str, ast.expr | ast.stmt, str, str]


class Module:
    """What the file declares, and what its names stand for."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self.aliases = aliases(ast.walk(tree))
        self.functions = {node.name: node for node in tree.body if isinstance(node, Function)}
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self.durable = [name for name, node in self.functions.items() if _mark(node) in ("workflow", "effect")]
        self.globals = [name for node in tree.body for name in _assigned(node)]

    def watched(self) -> Iterator[tuple[str, Function, ast.ClassDef | None]]:
        """The workflows and handlers, and the plain functions that they use, each once."""
        todo: list[tuple[str, Function, ast.ClassDef | None]] = []
        for node in ast.walk(self._tree):
            if isinstance(node, Function) and _mark(node) == "workflow":
                todo.append((f"workflow {node.name}", node, None))
            if isinstance(node, ast.ClassDef) and _mark(node) == "reducer":
                todo += [(f"reducer {node.name}", each, node) for each in node.body if isinstance(each, Function)]
        done: list[Function] = []
        while todo:
            inside, function, owner = todo.pop(0)
            # Functions may call each other in a circle; without this the walk would not end.
            if function in done:
                continue
            done.append(function)
            yield inside, function, owner
            for name in _names(function):
                other = self.functions.get(name)
                # Marked ones are watched on their own, and effects may do as they please.
                if other is not None and _mark(other) == "":
                    todo.append((f"{name}, used by {inside}", other, None))

    def declares(self, name: str) -> bool:
        """Whether a name is the file's own, and so not a builtin's."""
        return name in self.functions or name in self.classes or name in self.globals

    def float_keys(self) -> Iterator[Problem]:
        """Reducers whose cells are chosen by a floating-point field."""
        for node in self.classes.values():
            key = _reducer_key(node)
            if key is None:
                continue
            for method in node.body:
                event = _event_of(method)
                for field in self.classes[event].body if event in self.classes else ():
                    if isinstance(field, ast.AnnAssign) and _is_name(field.target, key) and _is_float(field.annotation):
                        yield lint_rules.FLOAT_KEY, field, f"cells are chosen by the float {key!r}", lint_rules.NO_FLOAT


class LintScope:
    """One function that must be deterministic."""

    def __init__(self, module: Module, function: Function, owner: ast.ClassDef | None) -> None:
        self._module = module
        self._function = function
        self._owner = owner
        self._locals = _bound(function)
        self._sets: dict[str, None] = {}

    def problems(self) -> Iterator[Problem]:
        self._find_sets()
        for node in ast.walk(self._function):
            yield from self._of(node)

    def _of(self, node: ast.AST) -> Iterator[Problem]:
        match node:
            case ast.Call():
                yield from self._call(node)
            # Only loading: assigning to an attribute of a global is a problem of its own, in the next case.
            case ast.Attribute() | ast.Name() if isinstance(node.ctx, ast.Load):
                yield from self._named(node)
            case ast.Attribute() if self._is_global(node.value):
                yield "global", node, f"changes the global {_root(node)}", lint_rules.NO_GLOBAL
            case ast.For() | ast.AsyncFor():
                yield from self._iterated(node.iter)
            case ast.comprehension():
                yield from self._iterated(node.iter)
            case ast.Global():
                yield "global", node, f"writes the global {', '.join(node.names)}", lint_rules.NO_GLOBAL
            case ast.Dict():
                for key in node.keys:
                    if isinstance(key, ast.Constant) and isinstance(key.value, float):
                        yield lint_rules.FLOAT_KEY, key, f"the float {key.value!r} as a key", lint_rules.NO_FLOAT
            case ast.Subscript():
                yield from self._subscript(node)
            case ast.Expr(value=ast.Call(func=ast.Name(id=name))) if name in self._module.durable:
                yield "not_awaited", node, f"{name}() is called and not awaited", f"write `await {name}(...)`"
            case _:
                return

    def _call(self, node: ast.Call) -> Iterator[Problem]:
        name = self._full(node.func)
        rule = lint_rules.of_call(name)
        if rule is not None:
            yield rule.name, node, f"{name}()", rule.instead
        if name in lint_rules.ORDERED_COPIES and node.args and self._is_set(node.args[0]):
            yield "set", node, "the order of a set is not defined", lint_rules.SORT_IT
        if isinstance(node.func, ast.Attribute):
            yield from self._method(node, node.func)

    def _method(self, node: ast.Call, method: ast.Attribute) -> Iterator[Problem]:
        rule = lint_rules.of_method(method.attr)
        if rule is not None:
            yield rule.name, node, f".{method.attr}()", rule.instead
        if method.attr in lint_rules.MUTATORS and self._is_global(method.value):
            yield "global", node, f"changes the global {_root(method.value)}", lint_rules.NO_GLOBAL

    def _named(self, node: ast.Attribute | ast.Name) -> Iterator[Problem]:
        """Values that are not calls: `os.environ`, `sys.argv`."""
        name = self._full(node)
        if name in lint_rules.OUTSIDE_VALUES:
            yield "io", node, name, lint_rules.IN_EFFECT

    def _iterated(self, iterable: ast.expr) -> Iterator[Problem]:
        if self._is_set(iterable):
            yield "set", iterable, "the order of a set is not defined", lint_rules.SORT_IT

    def _subscript(self, node: ast.Subscript) -> Iterator[Problem]:
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, float):
            yield lint_rules.FLOAT_KEY, node, f"the float {node.slice.value!r} as a key", lint_rules.NO_FLOAT
        if isinstance(node.ctx, ast.Store | ast.Del) and self._is_global(node.value):
            yield "global", node, f"changes the global {_root(node.value)}", lint_rules.NO_GLOBAL

    def _full(self, node: ast.expr) -> str:
        """The dotted name an expression stands for, through the file's imports; nothing for a local's attribute."""
        name = dotted(node)
        root, dot, rest = name.partition(".")
        # A local or the file's own function may have the name of a module; what it holds is not known here.
        if root not in self._module.aliases and (root in self._locals or self._module.declares(root)):
            return ""
        return self._module.aliases.get(root, root) + dot + rest if name else ""

    def _is_set(self, node: ast.expr | None) -> bool:
        return node is not None and any(self._is_one_set(each) for each in _operands(node))

    def _is_one_set(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Set | ast.SetComp):
            return True
        if isinstance(node, ast.Call):
            return self._full(node.func) in ("set", "frozenset")
        if isinstance(node, ast.Attribute) and _is_name(node.value, "self") and self._owner is not None:
            return any(_declares_set(each, node.attr) for each in self._owner.body)
        if isinstance(node, ast.Name):
            return node.id in self._sets
        return False

    def _is_global(self, node: ast.expr | None) -> bool:
        root = _root(node)
        return bool(root) and root in self._module.globals and root not in self._locals

    def _find_sets(self) -> None:
        """Note the locals that are declared as sets, or are given sets and nothing else. A local may be given what is
        made of others, and of itself: looked at again until none is found any more.
        """
        found = [each for each in ast.walk(self._function) if isinstance(each, ast.arg)]
        self._sets = dict.fromkeys([each.arg for each in found if _is_set_type(each.annotation)])
        given = _given_to(self._function)
        known = -1
        while known < len(self._sets):
            known = len(self._sets)
            for name, assigned in given.items():
                if not any(isinstance(each, ast.Name) for each in assigned) and all(map(self._is_set, assigned)):
                    self._sets[name] = None


def aliases(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Return what imported names stand for."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for each in node.names:
                # `import a.b` binds `a`, while `import a.b as c` binds the inner module.
                found[each.asname or each.name.partition(".")[0]] = (
                    each.name if each.asname else each.name.partition(".")[0]
                )
        # A relative import names the user's own modules, of which no rule tells.
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for each in node.names:
                found[each.asname or each.name] = f"{node.module}.{each.name}"
    return found


def dotted(node: ast.expr) -> str:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def _operands(node: ast.expr) -> Iterator[ast.expr]:
    """Yield what operators of sets combine; the expression itself if there is none."""
    left = [node]
    while left:  # a chain of operators is as deep as it is long
        each = left.pop()
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.BitAnd | ast.BitOr | ast.BitXor | ast.Sub):
            left += (each.right, each.left)
        else:
            yield each


def _mark(node: Function | ast.ClassDef) -> str:
    """Return what a decorator declares this to be: workflow, effect, reducer, or nothing."""
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(target, ast.Attribute) and target.attr in ("workflow", "effect", "reducer"):
            return target.attr
    return ""


def _reducer_key(node: ast.ClassDef) -> str | None:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and _mark(node) == "reducer":
            for keyword in decorator.keywords:
                if keyword.arg == "key" and isinstance(keyword.value, ast.Constant):
                    return str(keyword.value.value)
    return None


def _event_of(node: ast.stmt) -> str:
    if not isinstance(node, Function) or len(node.args.args) < 2:
        return ""
    annotation = node.args.args[1].annotation
    return annotation.id if isinstance(annotation, ast.Name) else ""


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_float(node: ast.expr) -> bool:
    return _is_name(node, "float") or (isinstance(node, ast.Constant) and node.value == "float")


def _names(function: Function) -> list[str]:
    return list(dict.fromkeys(node.id for node in ast.walk(function) if isinstance(node, ast.Name)))


def _assigned(node: ast.stmt) -> list[str]:
    """The names that a statement of the module binds to values. Imports, classes and functions are not values here."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _bound(function: Function) -> list[str]:
    """The names that are the function's own: its arguments, and what it assigns."""
    # A name that is declared global is not the function's own, though it is assigned here.
    declared = [name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names]
    given = [node.arg for node in ast.walk(function) if isinstance(node, ast.arg)]
    stored = [node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return [name for name in dict.fromkeys([*given, *stored]) if name not in declared]


def _given_to(function: Function) -> dict[str, list[ast.expr | None]]:
    """Return what each local is given. None: nothing, it is only declared."""
    found: dict[str, list[ast.expr | None]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
    return found


def _declares_set(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.AnnAssign) and _is_name(node.target, name) and _is_set_type(node.annotation)


def _is_set_type(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name) and node.id in ("set", "frozenset")


def _root(node: ast.expr | None) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
