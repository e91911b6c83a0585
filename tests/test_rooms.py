"""The rooms of the package, its import cycles, and rules for every module."""

from __future__ import annotations

import ast

from rooms import MODULES, ROOT, picture, uses


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
    ring = remaining(uses())

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


def test_the_picture_of_the_rooms_is_of_today():
    page = ROOT / "docs" / "contributing" / "architecture.md"

    assert picture() in page.read_text(encoding="utf-8"), f"replace the picture in {page} by what docs/rooms.py prints"


def test_no_module_looks_at_the_frame_of_its_caller():
    """What a function does depends on its arguments alone."""
    names = {"_getframe", "currentframe", "f_back", "f_lasti"}
    looking = [
        f"{module.name}:{node.lineno}"
        for module in MODULES.values()
        for node in module.nodes
        if isinstance(node, ast.Attribute) and node.attr in names
    ]

    assert not looking, listed(looking)
