"""The version of a kernel: a hash of what its code does, not of how it is written down.

Two files whose kernels differ only in comments, docstrings, positions or blank lines have the same
version, on every Python from 3.10 to 3.14, so that records stay valid. Needs no Triton: the files
are parsed, never imported.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from pathlib import Path

# Fields that say where or how, not what; or that only some Pythons have.
_SKIPPED = frozenset({"ctx", "kind", "type_comment", "type_params", "type_ignores"})

_PACKAGE = "kernels.attention."


def version_hash(module: Path, entries: Iterable[str]) -> str:
    """Twelve hex digits over the functions `entries` of a file and all they use.

    Uses are followed through names: to functions and constants of the same file, and of sibling
    files imported from it (`from kernels.attention.x import y` or `from .x import y`). What comes
    from elsewhere counts by its name alone.

    Args:
        module: a Python file.
        entries: names of functions defined in it.

    Raises:
        KeyError: an entry is not defined in `module`.
        OSError, SyntaxError: a file cannot be read or parsed.
    """
    seen: dict[tuple[str, str], str] = {}
    files: dict[Path, dict[str, ast.stmt]] = {}

    def visit(file: Path, name: str) -> None:
        if file not in files:
            files[file] = _definitions(ast.parse(file.read_text(encoding="utf-8")))
        definition = files[file].get(name)
        key = (file.stem, name)
        if definition is None or key in seen:
            return
        if isinstance(definition, ast.ImportFrom):
            origin = _sibling(file, definition)
            if origin is not None:
                for alias in definition.names:
                    if (alias.asname or alias.name) == name:
                        visit(origin, alias.name)
            return
        seen[key] = serialize(definition)
        for node in ast.walk(definition):
            if isinstance(node, ast.Name):
                visit(file, node.id)

    for entry in entries:
        visit(module, entry)
        if (module.stem, entry) not in seen:
            raise KeyError(f"{entry} is not defined in {module}")
    digest = hashlib.sha256()
    for (_, name), text in sorted(seen.items()):
        digest.update(f"{name}={text}\n".encode())
    return digest.hexdigest()[:12]


def serialize(node: object) -> str:
    """One spelling of an AST that does not depend on the Python version."""
    if isinstance(node, ast.AST):
        fields = []
        for name, value in ast.iter_fields(node):
            if name in _SKIPPED:
                continue
            if name == "body" and isinstance(value, list):
                value = _without_docstring(value)
            if value is None or value == []:
                continue
            fields.append(f"{name}={serialize(value)}")
        return f"{type(node).__name__}({','.join(sorted(fields))})"
    if isinstance(node, list):
        return f"[{','.join(serialize(item) for item in node)}]"
    return repr(node)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    """`body` without the strings that stand alone in it, which do nothing."""
    return [
        statement
        for statement in body
        if not (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
            and isinstance(statement.value.value, str)
        )
    ]


def _definitions(tree: ast.Module) -> dict[str, ast.stmt]:
    """What each top-level name of a file is defined by."""
    found: dict[str, ast.stmt] = {}
    for statement in tree.body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            found[statement.name] = statement
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                for node in ast.walk(target):
                    if isinstance(node, ast.Name):
                        found[node.id] = statement
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found[statement.target.id] = statement
        elif isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                found[alias.asname or alias.name] = statement
    return found


def _sibling(file: Path, statement: ast.ImportFrom) -> Path | None:
    """The file beside `file` that `statement` imports from, if it is one."""
    module = statement.module or ""
    if statement.level == 0:
        if not module.startswith(_PACKAGE):
            return None
        module = module[len(_PACKAGE) :]
    elif statement.level > 1:
        return None
    origin = file.with_name(f"{module}.py")
    return origin if origin.exists() else None
