"""One file from several: a module with all it uses of our others, taken from their sources.

The modules are parsed, not imported, so that it works where neither torch nor Triton is installed,
and what comes out is the text that was written, comments included. An alias at an import
(`from x import y as z`) is the name that y gets.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

_OURS = ("kernels.", "tuner.")
_Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


@dataclass(frozen=True)
class Inlined:
    """The parts of a file, without blank lines around them."""

    imports: str
    body: str


def inline(
    module: str,
    entries: Iterable[str],
    values: Mapping[str, str],
    decorators: Mapping[str, str],
) -> Inlined:
    """The functions `entries` of a module of ours, and all that they use of our modules.

    Args:
        module: its dotted name.
        values: instead of the values that these names are assigned in `module`.
        decorators: instead of the decorators of these functions, by their names in the result.

    Raises:
        ValueError: two modules define one name, or one is defined by a statement of a kind that
            cannot be taken over.
    """
    collection = _Collection()
    for entry in entries:
        collection.take(module, entry)
    pieces: list[_Piece] = []
    for source in collection.in_order():
        for statement in source.statements:
            if statement in source.taken:
                known = values if source.module == module else {}
                pieces.append(source.piece(statement, known, decorators))
    _refuse_doubles(pieces)
    return Inlined(_imports(collection.imports), _join(pieces))


def docstring(module: str) -> str:
    """The docstring of a module of ours, as it is written between the quotes."""
    source = _Source(module)
    first = source.tree.body[0]
    assert isinstance(first, ast.Expr)
    return "\n".join(source.lines[first.lineno - 1 : first.end_lineno]).strip('"').strip()


@dataclass(frozen=True)
class _Piece:
    names: tuple[str, ...]
    text: str
    spacious: bool  # a function or a class
    lines: tuple[str, int, int]  # module, first and last line


class _Source:
    """A module of ours and what was taken of it."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.taken: set[_Definition] = set()
        self.renamed: dict[str, str] = {}
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise ValueError(f"{module} has no source")
        self.text = Path(spec.origin).read_text(encoding="utf-8")
        self.lines = self.text.splitlines()
        self.tree = ast.parse(self.text)

    @property
    def statements(self) -> Iterator[_Definition]:
        for statement in self.tree.body:
            if isinstance(statement, _Definition):
                yield statement

    @cached_property
    def definitions(self) -> dict[str, _Definition]:
        return {name: statement for statement in self.statements for name in _names(statement)}

    @cached_property
    def imports(self) -> dict[str, tuple[ast.Import | ast.ImportFrom, ast.alias]]:
        """Name -> the import at the top of the file, or under `if TYPE_CHECKING`, that binds it."""
        found = {}
        for top in self.tree.body:
            for statement in top.body if isinstance(top, ast.If) else [top]:
                if isinstance(statement, (ast.Import, ast.ImportFrom)):
                    for alias in statement.names:
                        name = alias.asname or alias.name
                        found[name.partition(".")[0]] = statement, alias
        return found

    def piece(
        self, statement: _Definition, values: Mapping[str, str], decorators: Mapping[str, str]
    ) -> _Piece:
        names = tuple(self.renamed.get(name, name) for name in _names(statement))
        first, last = _extent(statement)
        lines = self._renamed_lines(statement)
        if isinstance(statement, ast.FunctionDef) and names[0] in decorators:
            # Up to the line of def, which lines has at statement.lineno - first.
            lines[: statement.lineno - first] = [decorators[names[0]]]
        if isinstance(statement, ast.AnnAssign) and names[0] in values:
            annotation = ast.unparse(statement.annotation)
            lines = [f"{names[0]}: {annotation} = {values[names[0]]}"]
        while first > 1 and self.lines[first - 2].startswith("#"):
            first -= 1
            lines.insert(0, self.lines[first - 1])
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            for line in range(last + 1, self._end_of_remark(statement) + 1):
                lines.append(self.lines[line - 1])
                last = line
        spacious = isinstance(statement, (ast.FunctionDef, ast.ClassDef))
        return _Piece(names, "\n".join(lines), spacious, (self.module, first, last))

    def _end_of_remark(self, statement: _Definition) -> int:
        """The last line of the string that stands below an assignment to explain it."""
        body = self.tree.body
        after = body[body.index(statement) + 1 :][:1]
        for remark in after:
            if (
                isinstance(remark, ast.Expr)
                and isinstance(remark.value, ast.Constant)
                and isinstance(remark.value.value, str)
                and remark.end_lineno is not None
            ):
                return remark.end_lineno
        return _extent(statement)[1]

    def _renamed_lines(self, statement: _Definition) -> list[str]:
        first, last = _extent(statement)
        lines = [line.encode() for line in self.lines[first - 1 : last]]  # as columns are counted
        places = []
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id in self.renamed:
                places.append((node.lineno, node.col_offset, node.id))
            elif isinstance(node, ast.FunctionDef) and node.name in self.renamed:
                places.append((node.lineno, node.col_offset + len("def "), node.name))
        for number, at, old in sorted(places, reverse=True):  # from the right, so that columns hold
            line, new = lines[number - first], self.renamed[old].encode()
            lines[number - first] = line[:at] + new + line[at + len(old.encode()) :]
        return [line.decode() for line in lines]


@dataclass
class _Collection:
    sources: dict[str, _Source] = field(default_factory=dict)
    uses: dict[str, set[str]] = field(default_factory=dict)  # module -> modules it takes from
    imports: set[tuple[str | None, str, str | None]] = field(default_factory=set)

    def take(self, module: str, name: str) -> None:
        """Take what `name` means in `module`, and all that it uses."""
        source = self.sources.get(module) or self.sources.setdefault(module, _Source(module))
        statement = source.definitions.get(name)
        if statement is not None:
            if statement not in source.taken:
                source.taken.add(statement)
                for node in ast.walk(statement):
                    if isinstance(node, ast.Name):
                        self.take(module, node.id)
            return
        if name not in source.imports:
            return  # a builtin, a parameter or a local name
        imported, alias = source.imports[name]
        if isinstance(imported, ast.ImportFrom):
            origin = imported.module or ""
            if origin.startswith(_OURS):
                self.uses.setdefault(module, set()).add(origin)
                self.take(origin, alias.name)
                if alias.asname is not None:
                    self.sources[origin].renamed[alias.name] = alias.asname
            else:
                self.imports.add((origin, alias.name, alias.asname))
        elif alias.name.startswith(_OURS):
            raise ValueError(f"{module} imports {alias.name} as a whole")
        else:
            self.imports.add((None, alias.name, alias.asname))

    def in_order(self) -> list[_Source]:
        """Each module after those that it takes from."""
        ordered: dict[str, _Source] = {}

        def add(module: str) -> None:
            if module not in ordered:
                for used in sorted(self.uses.get(module, ())):
                    add(used)
                ordered[module] = self.sources[module]

        for module in sorted(self.sources):
            add(module)
        return list(ordered.values())


def _names(statement: _Definition) -> list[str]:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]


def _extent(statement: _Definition) -> tuple[int, int]:
    """The first and the last line, decorators included."""
    first = statement.lineno
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        first = min([first, *(decorator.lineno for decorator in statement.decorator_list)])
    assert statement.end_lineno is not None
    return first, statement.end_lineno


def _refuse_doubles(pieces: Iterable[_Piece]) -> None:
    homes: dict[str, str] = {}
    for piece in pieces:
        for name in piece.names:
            if name in homes:
                raise ValueError(f"{homes[name]} and {piece.lines[0]} both define {name}")
            homes[name] = piece.lines[0]


def _join(pieces: Iterable[_Piece]) -> str:
    """The pieces with the blank lines that ruff's formatter wants between them."""
    text = ""
    before: _Piece | None = None
    for piece in pieces:
        if before is not None:
            (module, _, last), (here, first, _) = before.lines, piece.lines
            close = module == here and first == last + 1
            text += "\n\n\n" if before.spacious or piece.spacious else "\n" if close else "\n\n"
        text += piece.text
        before = piece
    return text


def _imports(found: Iterable[tuple[str | None, str, str | None]]) -> str:
    """Import statements in isort's order: the standard library first."""
    sections: tuple[list[str], list[str]] = ([], [])
    whole = sorted((name, asname) for origin, name, asname in found if origin is None)
    for name, asname in whole:
        line = f"import {name} as {asname}" if asname else f"import {name}"
        sections[name.partition(".")[0] not in sys.stdlib_module_names].append(line)
    parts: dict[str, list[str]] = {}
    for origin, name, asname in sorted((o or "", n, a or "") for o, n, a in found):
        if origin and origin != "__future__":
            parts.setdefault(origin, []).append(f"{name} as {asname}" if asname else name)
    for origin, names in parts.items():
        line = f"from {origin} import {', '.join(names)}"
        sections[origin.partition(".")[0] not in sys.stdlib_module_names].append(line)
    return "\n\n".join("\n".join(section) for section in sections if section)
