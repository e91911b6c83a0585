"""The modules of the package, what they import, and the picture of its rooms in docs/contributing/architecture.md.

A room is a folder of the package, or a module that is in none. `python docs/rooms.py` prints the picture.
"""

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
    """A module: full name and file."""

    name: str
    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        """Syntax tree."""
        gc.disable()  # looking for garbage among the nodes, again and again, would take most of the time
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        gc.freeze()
        gc.enable()
        return tree

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return list(ast.walk(self.tree))

    @property
    def package(self) -> str:
        """Full name of the package that relative imports start from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    def imports(self) -> Iterator[str]:
        """Yield the modules of this package that a module uses. Imports in functions and for type checkers count."""
        return self._imports(_statements(self.tree))

    def imports_at_run_time(self) -> Iterator[str]:
        """Yield the modules of this package that a module uses, except modules that only type checkers import."""
        return self._imports(_statements(self.tree, run_time=True))

    def _imports(self, nodes: Iterable[ast.AST]) -> Iterator[str]:
        for node in nodes:
            for full in _targets(node, self.package):
                module = next((part for part in _prefixes(full) if part in MODULES), "datasets_rl")
                if module not in {"datasets_rl", self.name}:
                    yield module


def _statements(tree: ast.AST, *, run_time: bool = False) -> Iterator[ast.AST]:
    """Yield all statements, also inside of functions and blocks. At run time, without statements for type checkers."""
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
    """Return the room of a module: its folder below the package, or the module itself if it is in no folder."""
    return name.split(".")[1]


def uses() -> dict[str, set[str]]:
    """Return the rooms that each room uses. Imports in functions and for type checkers count."""
    found: dict[str, set[str]] = {}
    for module in MODULES.values():
        if module.name != "datasets_rl":
            used = {room(name) for name in module.imports()}
            found.setdefault(room(module.name), set()).update(used - {room(module.name)})
    return found


def floors(rooms: dict[str, set[str]]) -> list[list[str]]:
    """Return the rooms of each floor, from the ground up: a room is a floor above the highest room that it uses.

    Raises:
        ValueError: If rooms use each other in a ring.
    """
    waiting, built = dict(rooms), []
    while waiting:
        floor = sorted(name for name, used in waiting.items() if not used & waiting.keys())
        if not floor:
            raise ValueError(f"a ring among {', '.join(sorted(waiting))}")
        built.append(floor)
        waiting = {name: used for name, used in waiting.items() if name not in floor}
    return built


def picture() -> str:
    """Return the rooms as text, the highest floor first: a room imports only rooms of lower floors."""
    levels = [*enumerate(floors(uses()))]
    return "\n".join(
        f"{number:5}  {'  '.join(name for name in names if name[0] != '_')}" for number, names in reversed(levels)
    )


if __name__ == "__main__":
    print(picture())
