"""The rooms of the package, its import cycles, and rules for every module."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "datasets_rl": ROOT / "datasets_rl",
    "datasets_rl.cli": ROOT / "cli",
    "datasets_rl.recipes": ROOT / "recipes",
}


@dataclass(frozen=True)
class Module:
    name: str
    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        gc.disable()  # looking for garbage among the nodes, again and again, would take most of the time
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        gc.freeze()
        gc.enable()
        return tree

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def package(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    def imports(self) -> Iterator[str]:
        """Yield the modules of this package that a module uses; imports in functions and for type checkers count."""
        return self._imports(_statements(self.tree))

    def imports_at_run_time(self) -> Iterator[str]:
        """Yield the modules of this package that a module uses, except those that only type checkers import."""
        return self._imports(_statements(self.tree, run_time=True))

    def _imports(self, nodes: Iterable[ast.AST]) -> Iterator[str]:
        for node in nodes:
            for full in _targets(node, self.package):
                module = next((part for part in _prefixes(full) if part in MODULES), "datasets_rl")
                if module not in {"datasets_rl", self.name}:
                    yield module


def _statements(tree: ast.AST, *, run_time: bool = False) -> Iterator[ast.AST]:
    """Yield all statements, those in functions too, and what holds some; at run time, not those for type checkers."""
    pending = [tree]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            type_checking = (
                isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            )
            # Expressions contain no statements.
            if not isinstance(node, ast.expr) and not (run_time and type_checking):
                yield node
                pending.append(node)


def _prefixes(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]


def _targets(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parts = package.split(".")
        base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
        base = ".".join(filter(None, (base, node.module)))
        yield from (f"{base}.{alias.name}" for alias in node.names)


def _modules() -> dict[str, Module]:
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = [*path.relative_to(folder).with_suffix("").parts]
            name = ".".join([package, *(parts[:-1] if parts[-1] == "__init__" else parts)])
            found[name] = Module(name, path)
    return found


MODULES = _modules()


def room(name: str) -> str:
    """Return the room of a module: its folder below the package, or the module itself if it is in none."""
    return name.split(".")[1]


def listed(violations: list[str]) -> str:
    """Format all violations, one per line, because pytest shortens a compared list."""
    return "\n".join(["", *violations])


def remaining(uses: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return what is left of a graph once everything is taken away that only uses what was taken before: its rings."""
    waiting = dict(uses)
    while ready := [name for name, used in waiting.items() if not used & waiting.keys()]:
        for name in ready:
            del waiting[name]
    return waiting


def test_no_room_is_in_a_ring():
    """A room may use those below it, also in functions and in annotations; none uses, by any way, a room that uses it."""
    uses: dict[str, set[str]] = {}
    for module in MODULES.values():
        if module.name != "datasets_rl":
            used = {room(name) for name in module.imports()}
            uses.setdefault(room(module.name), set()).update(used - {room(module.name)})

    ring = remaining(uses)

    assert not ring, listed([f"{name} uses {', '.join(sorted(used & ring.keys()))}" for name, used in ring.items()])


def test_there_are_no_import_cycles():
    assert remaining({name: set(module.imports_at_run_time()) for name, module in MODULES.items()}) == {}


def test_every_module_has_a_docstring():
    without = [module.name for module in MODULES.values() if not ast.get_docstring(module.tree)]

    assert not without, listed(without)


def test_no_module_checks_with_an_assert_statement():
    """Python removes assert statements under -O."""
    asserts = [
        f"{module.name}:{node.lineno}"
        for module in MODULES.values()
        for node in module.nodes
        if isinstance(node, ast.Assert)
    ]

    assert not asserts, listed(asserts)


def _uses(statement: ast.stmt, name: str | None) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(statement))


def test_no_module_swallows_every_exception():
    """A user's function may raise any exception; a handler for all of them must raise an error, or hand this one over."""
    broad = [
        f"{module.name}:{node.lineno}"
        for module in MODULES.values()
        for node in module.nodes
        if isinstance(node, ast.ExceptHandler)
        and not isinstance(node.body[-1], ast.Raise)
        and not (isinstance(node.body[-1], (ast.Return, ast.Assign)) and _uses(node.body[-1], node.name))
        and (node.type is None or getattr(node.type, "id", "") == "Exception")
    ]

    assert not broad, listed(broad)


def test_only_the_disk_looks_for_home_folders():
    """Python's error about the home of an unknown user would be reported as a fault of this package."""
    others = [
        f"{module.name}:{node.lineno}"
        for module in MODULES.values()
        for node in module.nodes
        if isinstance(node, ast.Attribute) and node.attr == "expanduser" and module.name != "datasets_rl.disk"
    ]

    assert not others, listed(others)
