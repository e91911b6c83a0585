"""The layers of the package, its import cycles, and rules for every module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "datasets_rl": ROOT / "datasets_rl",
    "datasets_rl.cli": ROOT / "cli",
    "datasets_rl.recipes": ROOT / "recipes",
}

LAYERS = [
    {
        "card",
        "compiled",
        "deprecation",
        "errors",
        "normalizer",
        "notebook",
        "remedy",
        "returns",
        "settings",
        "ted.keys",
        "ted.rewards",
    },
    {"checkpoint", "disk", "format.schema", "format.summary", "progress", "trust"},
    {"format.manifest", "specs"},
    {"ted"},
    {
        "pipeline.engines",
        "pipeline.engines.*",
        "pipeline.journal",
        "pipeline.partial",
        "pipeline.build",
        "fetch",
        "format",
        "read",
    },
    {"samplers", "transforms", "vla", "writers"},
    {"sources", "storages"},
    {"pipeline"},
    {"buffers", "look", "store"},
    {"environments", "locating"},
    {"inventory", "mixture_file", "relocation"},
    {"catalog"},
    {"growth"},
    {"planning"},
    {"citing", "diagnosis", "downloading"},
    {"cards"},
    {"pushing"},
    {"datasets", "exporting", "preprocessing", "reread", "scores", "sources.*.dataset", "verification", "view"},
    {"loading", "mixing", "offline_to_online", "recording", "rlhf", "training"},
    {"__main__", "cli", "recipes"},
]
"""From the lowest to the highest. A layer may use those below it; in a layer, modules may use each other without cycles."""

DATA_ONLY = {"schemes"}


@dataclass(frozen=True)
class Module:
    name: str
    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def package(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    def imports(self, known: set[str]) -> Iterator[str]:
        """Yield the modules of this package that a module uses, except those that only type checkers import."""
        for node in _run_time(self.tree):
            for full in _targets(node, self.package):
                module = next((part for part in _prefixes(full) if part in known), "datasets_rl")
                if module not in {"datasets_rl", self.name}:
                    yield module


def _run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run, including imports inside functions, which must not hide an import cycle."""
    pending = [tree]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                continue
            # Expressions contain no imports.
            if not isinstance(node, ast.expr):
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


@cache
def layer(name: str) -> int:
    """Return the number of a module's layer: that of the module itself, or that of its folder."""
    inner = name.removeprefix("datasets_rl.")
    for number, members in enumerate(LAYERS):
        if any(fnmatch(inner, member) for member in members):
            return number
    return next(number for number, members in enumerate(LAYERS) if inner.partition(".")[0] in members)


def placed() -> list[Module]:
    return [module for name, module in MODULES.items() if name != "datasets_rl" and name.split(".")[1] not in DATA_ONLY]


@cache
def used_by(module: Module) -> set[str]:
    return set(module.imports(set(MODULES)))


def listed(violations: list[str]) -> str:
    """Format all violations, one per line, because pytest shortens a compared list."""
    return "\n".join(["", *violations])


def test_modules_import_only_from_lower_layers():
    upward = [
        f"{module.name} imports {used}, which is in a layer above"
        for module in placed()
        for used in sorted(used_by(module))
        if used.split(".")[1] not in DATA_ONLY and layer(used) > layer(module.name)
    ]

    assert not upward, listed(upward)


def test_there_are_no_import_cycles():
    waiting = {name: used_by(module) for name, module in MODULES.items()}
    while ready := [name for name, used in waiting.items() if not used & set(waiting)]:
        for name in ready:
            del waiting[name]

    assert waiting == {}


def test_every_top_level_module_has_a_layer():
    named = {member.partition(".")[0] for members in LAYERS for member in members}
    there = {module.name.split(".")[1] for module in MODULES.values() if module.name != "datasets_rl"}

    assert there - DATA_ONLY <= named


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
