"""Figures of the house: what makes the source easy or hard to find one's way in.

    python tools/house_figures.py [--json] [--names] [FOLDER]

Each figure is counted over the files of the package, `src/worldline` unless another folder is given. `--names` lists
what is behind a figure: classes and files that share a name, constructors with many arguments. The bounds that hold are
in `tests/arch/test_house.py`.
"""

from __future__ import annotations

import ast
import collections
import io
import json
import pathlib
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "worldline"

# Base names that each feature may have: they say which part of the feature a file is.
SLOTS = (
    "__init__",
    "__main__",
    "feature",
    "keyspace",
    "records",
    "batches",
    "job",
    "calls",
    "commands",
    "checks",
    "part",
)
# One noun in these three is one concept: its record, its keys, its batches.
TOGETHER = ("model", "keys", "layers")
ARGUMENTS_MAX = 7  # of a constructor
# As names of parameters they say where a value came from, and not what it is.
SAY_NOTHING = ("found", "given", "wanted", "before")
ENDINGS = (
    "ings",
    "ing",
    "ers",
    "er",
    "ed",
    "es",
    "s",
    "e",
)  # of one word with several forms: mark, marks, marker, marked
NO_COMMENT = ("# fmt", "# type", "# noqa", "# --")  # for tools, and rulers between parts of a file
NOTHING = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT)


def stem(word: str) -> str:
    """What is left of a word without the endings of its forms."""
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            break
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word


def stems(name: str) -> tuple[str, ...]:
    return tuple(stem(word) for word in name.split("_"))


def may_repeat(paths: Sequence[str]) -> bool:
    """Whether files of one name are the same noun in several layers."""
    tops = [path.split("/")[0] for path in paths]
    return all(top in TOGETHER for top in tops) and len(set(tops)) == len(tops)


class Figures:
    def __init__(self, package: pathlib.Path) -> None:
        self.package = package
        self.lines = self.code = self.comments = self.skips = self.short = self.functions = self.aliases = 0
        self.commented: dict[str, list[int]] = collections.defaultdict(
            lambda: [0, 0]
        )  # by folder: comments, lines of code
        self.constructors: list[str] = []
        self.parameters: list[str] = []
        self.classes: dict[str, list[str]] = collections.defaultdict(list)
        self.files: dict[str, list[str]] = collections.defaultdict(list)
        for path in sorted(package.rglob("*.py")):
            self.add(path.relative_to(package).as_posix(), path.read_text(encoding="utf-8"))

    def add(self, name: str, text: str) -> None:
        tree = ast.parse(text)
        comments, code = count_comments(text)
        self.lines += text.count("\n")
        self.skips += len(re.findall(r"#\s*fmt: (?:skip|off)", text))
        self.comments, self.code = self.comments + comments, self.code + code
        folder = self.commented[name.split("/", maxsplit=1)[0] if "/" in name else ""]
        folder[0], folder[1] = folder[0] + comments, folder[1] + code
        base = name.rsplit("/", 1)[-1][: -len(".py")]
        if base not in SLOTS:
            self.files[base].append(name)
        for top in tree.body:
            if isinstance(top, ast.ClassDef) and not top.name.startswith("_"):
                self.classes[top.name].append(name)
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self.functions += 1
                self.short += (node.end_lineno or node.lineno) - node.lineno < 4
                every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                self.parameters += [f"{name}:{each.lineno} {each.arg}" for each in every if each.arg in SAY_NOTHING]
                if node.name == "__init__":
                    arguments = len(node.args.args) + len(node.args.kwonlyargs) - 1
                    if arguments > ARGUMENTS_MAX:
                        self.constructors.append(f"{name}:{node.lineno} {arguments}")
            elif isinstance(node, ast.ImportFrom):
                self.aliases += sum(1 for each in node.names if each.asname and each.asname != each.name)

    @property
    def same_classes(self) -> dict[str, list[str]]:
        return {name: paths for name, paths in sorted(self.classes.items()) if len(paths) > 1}

    @property
    def same_files(self) -> dict[str, list[str]]:
        return {name: paths for name, paths in sorted(self.files.items()) if len(paths) > 1 and not may_repeat(paths)}

    @property
    def exchangeable(self) -> list[list[str]]:
        """Base names that differ by the form of a word alone."""
        found: dict[tuple[str, ...], list[str]] = collections.defaultdict(list)
        for name in sorted(self.files):
            found[stems(name)].append(name)
        return [names for names in found.values() if len(names) > 1]

    def as_dict(self) -> dict[str, Any]:
        return {
            "lines": self.lines,
            "lines of code": self.code,
            "comments, % of code": round(100 * self.comments / self.code, 2),
            "comments by folder, %": {
                folder or "worldline": round(100 * comments / max(1, code), 1)
                for folder, (comments, code) in sorted(self.commented.items())
            },
            "class names in several files": len(self.same_classes),
            "file names in several folders": len(self.same_files),
            "exchangeable file names": len(self.exchangeable),
            "fmt: skip": self.skips,
            "import aliases": self.aliases,
            "constructors of more than 7 arguments": len(self.constructors),
            "parameters named found, given, wanted, before": len(self.parameters),
            "functions of four lines or fewer, %": round(100 * self.short / self.functions),
        }

    def names(self) -> Iterator[str]:
        for what, found in (("class", self.same_classes), ("file", self.same_files)):
            for name, paths in found.items():
                yield f"{what} {name}: {', '.join(paths)}"
        for names in self.exchangeable:
            yield f"exchangeable: {', '.join(names)}"
        for each in self.constructors:
            yield f"constructor {each}"
        for each in self.parameters:
            yield f"parameter {each}"


def count_comments(text: str) -> tuple[int, int]:
    """Comments, own-line and behind code, and lines of code without docstrings' blank lines."""
    comments = 0
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments += not token.string.startswith(NO_COMMENT)
        elif token.type not in NOTHING:
            code.update(range(token.start[0], token.end[0] + 1))
    return comments, len(code)


def main(arguments: Sequence[str]) -> None:
    folders = [each for each in arguments if not each.startswith("--")]
    figures = Figures(pathlib.Path(folders[0]).resolve() if folders else PACKAGE)
    if "--json" in arguments:
        print(json.dumps(figures.as_dict(), indent=2))
    else:
        for what, value in figures.as_dict().items():
            print(f"{what}: {value}")
    if "--names" in arguments:
        print("\n".join(figures.names()))


if __name__ == "__main__":
    main(sys.argv[1:])
