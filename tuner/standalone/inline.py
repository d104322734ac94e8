"""One file from several: a module with all it uses of our others, taken from their sources.

The modules are parsed, not imported, so that it works where neither torch nor Triton is installed,
and what comes out is the text that was written, comments included. An alias at an import
(`from x import y as z`) is the name that y gets. Where two modules mean different things by one
name, the later one's gets its module's name in front, as does what is called like an import.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tuner.standalone.imports import Imported, import_statements

_OURS = ("kernels.", "tuner.")
_Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


@dataclass(frozen=True)
class Inlined:
    """The parts of a file, without blank lines around them."""

    imports: str
    body: str


@dataclass(frozen=True)
class Changes:
    """What is to differ from the sources. Keys are names in the result.

    Attributes:
        values: instead of the values that these names are assigned.
        decorators: instead of those of these functions.
        annotations: of parameters of these functions that have none.
        names: other names for these.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    decorators: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)


_NO_CHANGES = Changes()


def inline(entries: Iterable[tuple[str, str]], changes: Changes = _NO_CHANGES) -> Inlined:
    """Functions and classes of modules of ours, and all that they use of our modules.

    Args:
        entries: (dotted module, name). What comes first in the result is what the first one uses.

    Raises:
        ValueError: a name that has to change is also a parameter's, a module of ours is imported
            by `import`, or two modules import different things by one name.
    """
    collection = _Collection(changes)
    for module, entry in entries:
        collection.take(module, entry)
    finals = collection.final_names()
    pieces: list[_Piece] = []
    known: set[tuple[str, ...]] = set()
    for source in collection.in_order():
        for statement in source.statements:
            if statement in source.taken:
                piece = source.piece(statement, finals, changes)
                if piece.names not in known:  # else an equal definition is there
                    known.add(piece.names)
                    pieces.append(piece)
    return Inlined(import_statements(collection.imports), _join(pieces))


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


@dataclass(frozen=True)
class _Meaning:
    """What a name of ours stands for: a definition of `module`."""

    module: str
    name: str


_Finals = Mapping[_Meaning, str]


class _Source:
    """A module of ours and what was taken of it."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.taken: set[_Definition] = set()
        self.uses: dict[str, _Meaning] = {}  # names of ours, dotted where it says module.name
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

    def module_named(self, name: str) -> str | None:
        """The module of ours that `name` is, dotted, if it is one."""
        imported, alias = self.imports.get(name, (None, None))
        if not isinstance(imported, ast.ImportFrom) or alias is None:
            return None
        origin = imported.module or ""
        if not _ours(origin):
            return None
        spec = importlib.util.find_spec(origin)
        places = (spec.submodule_search_locations if spec else None) or ()
        found = any((Path(place) / f"{alias.name}.py").exists() for place in places)
        return f"{origin}.{alias.name}" if found else None

    def piece(self, statement: _Definition, finals: _Finals, changes: Changes) -> _Piece:
        names = tuple(finals[_Meaning(self.module, name)] for name in _names(statement))
        first, last = _extent(statement)
        lines = self._rewritten(statement, finals, changes.annotations.get(names[0], {}))
        if isinstance(statement, ast.FunctionDef) and names[0] in changes.decorators:
            # Up to the line of def, which lines has at statement.lineno - first.
            lines[: statement.lineno - first] = [changes.decorators[names[0]]]
        if isinstance(statement, ast.AnnAssign) and names[0] in changes.values:
            annotation = ast.unparse(statement.annotation)
            lines = [f"{names[0]}: {annotation} = {changes.values[names[0]]}"]
        while first > 1 and self.lines[first - 2].startswith("#"):
            first -= 1
            lines.insert(0, self.lines[first - 1])
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            for line in range(last + 1, self._end_of_remark(statement) + 1):
                lines.append(self.lines[line - 1])
                last = line
        spacious = isinstance(statement, (ast.FunctionDef, ast.ClassDef))
        return _Piece(names, "\n".join(lines), spacious, (self.module, first, last))

    def identity(self, statement: _Definition) -> object:
        """Equal for definitions that say the same of the same."""
        own = _names(statement)
        used = {_dotted(node) for node in ast.walk(statement)}.difference(own)
        return ast.dump(statement), {self.uses[name] for name in used if name in self.uses}

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

    def _rewritten(
        self, statement: _Definition, finals: _Finals, annotations: Mapping[str, str]
    ) -> list[str]:
        """The lines of `statement`, with the names that the result gives to what they mean."""
        first, last = _extent(statement)
        lines = [line.encode() for line in self.lines[first - 1 : last]]  # as columns are counted
        places = []  # line, column, what is there, what is to be
        parameters = set()
        for node in ast.walk(statement):
            if isinstance(node, ast.arg):
                parameters.add(node.arg)
                if node.arg in annotations:
                    typed = f"{node.arg}: {annotations[node.arg]}"
                    places.append((node.lineno, node.col_offset, node.arg, typed))
                continue
            at = 0
            if isinstance(node, ast.FunctionDef):
                written, at = node.name, len("def ")
            elif isinstance(node, ast.ClassDef):
                written, at = node.name, len("class ")
            elif (dotted := _dotted(node)) is not None:
                written = dotted
            else:
                continue
            meaning = self.uses.get(written)
            if meaning is not None and (final := finals[meaning]) != written:
                assert isinstance(node, (ast.expr, ast.stmt))
                places.append((node.lineno, node.col_offset + at, written, final))
        for _, _, written, final in places:
            if written in parameters and not final.startswith(f"{written}: "):
                raise ValueError(f"{self.module} has a parameter {written}, which is to be {final}")
        for number, column, old, new in sorted(places, reverse=True):  # so that columns hold
            line = lines[number - first]
            lines[number - first] = line[:column] + new.encode() + line[column + len(old) :]
        return [line.decode() for line in lines]


@dataclass
class _Collection:
    changes: Changes
    sources: dict[str, _Source] = field(default_factory=dict)
    needs: dict[str, set[str]] = field(default_factory=dict)  # module -> modules it takes from
    imports: set[Imported] = field(default_factory=set)
    aliases: dict[_Meaning, str] = field(default_factory=dict)

    def take(self, module: str, name: str) -> _Meaning | None:
        """Take what `name` means in `module`, and all that it uses; None if it is not ours."""
        source = self.sources.get(module) or self.sources.setdefault(module, _Source(module))
        statement = source.definitions.get(name)
        if statement is None:
            return self._take_import(source, name)
        if statement not in source.taken:
            source.taken.add(statement)
            for defined in _names(statement):
                source.uses[defined] = _Meaning(module, defined)
            for node in ast.walk(statement):
                if (written := _dotted(node)) is not None:
                    self._use(source, written)
        return _Meaning(module, name)

    def _use(self, source: _Source, written: str) -> None:
        head, _, rest = written.partition(".")
        whole = source.module_named(head)
        if rest and whole is not None:
            meaning = self.take(whole, rest)
        elif rest or whole is not None:
            return  # an attribute of what is not a module, whose name has a node of its own
        else:
            meaning = self.take(source.module, head)
        if meaning is not None:
            source.uses[written] = meaning
            if meaning.module != source.module:
                self.needs.setdefault(source.module, set()).add(meaning.module)

    def _take_import(self, source: _Source, name: str) -> _Meaning | None:
        if name not in source.imports:
            return None  # a builtin, a parameter or a local name
        imported, alias = source.imports[name]
        if isinstance(imported, ast.ImportFrom):
            origin = imported.module or ""
            if _ours(origin):
                meaning = self.take(origin, alias.name)
                if meaning is not None and alias.asname is not None:
                    self.aliases[meaning] = alias.asname
                return meaning
            self.imports.add(Imported(origin, alias.name, alias.asname or ""))
        elif _ours(alias.name):
            raise ValueError(f"{source.module} imports {alias.name} as a whole")
        else:
            self.imports.add(Imported("", alias.name, alias.asname or ""))
        return None

    def final_names(self) -> dict[_Meaning, str]:
        """The names in the result. Equal definitions of one name share it; what is imported has
        its own."""
        finals: dict[_Meaning, str] = {}
        bearers: dict[str, object] = {
            each.asname or each.name.partition(".")[0]: each for each in self.imports
        }
        for source in self.in_order():
            for statement in source.statements:
                for name in _names(statement) if statement in source.taken else ():
                    meaning = _Meaning(source.module, name)
                    final = self.aliases.get(meaning, name)
                    final = self.changes.names.get(final, final)
                    definition = source.identity(statement)
                    if bearers.setdefault(final, definition) != definition:
                        home = source.module.rpartition(".")[2]
                        final = f"{home.upper() if name.isupper() else home}_{name}"
                        assert bearers.setdefault(final, definition) == definition
                    finals[meaning] = final
        return finals

    def in_order(self) -> list[_Source]:
        """Each module after those that it takes from."""
        ordered: dict[str, _Source] = {}

        def add(module: str) -> None:
            if module not in ordered:
                for needed in sorted(self.needs.get(module, ())):
                    add(needed)
                ordered[module] = self.sources[module]

        for module in self.sources:
            add(module)
        return list(ordered.values())


def _ours(module: str) -> bool:
    return f"{module}.".startswith(_OURS)


def _dotted(node: ast.AST) -> str | None:
    """`name` or `name.attribute`, where `node` is one of them."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return None


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
