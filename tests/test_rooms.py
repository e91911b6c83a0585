"""The rooms of the package, its import cycles, and rules for every module."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from rooms import MODULES, ROOT, Module, picture, room, uses


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


def test_no_room_uses_the_contracts_which_need_pytest():
    users = [name for name, used in uses().items() if "testing" in used]

    assert not users, listed(users)


def test_every_module_has_a_docstring():
    without = [module.name for module in MODULES.values() if not ast.get_docstring(module.tree)]

    assert not without, listed(without)


def test_no_module_checks_with_an_assert_statement():
    """Python removes assert statements under -O. Only the contracts have some, which pytest runs."""
    asserts = [
        f"{module.name}:{node.lineno}"
        for module in MODULES.values()
        if not module.name.startswith("datasets_rl.testing.")
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
        if isinstance(node, ast.Attribute) and node.attr == "expanduser" and room(module.name) != "disk"
    ]

    assert not others, listed(others)


_OF_OS = {
    *("fdatasync", "fsync", "link", "lockf", "remove", "removedirs", "rename", "renames", "replace", "rmdir"),
    *("symlink", "unlink"),
}
_OF_SHUTIL = {"move", "rmtree"}
_OF_PATHS = {"hardlink_to", "link_to", "rename", "rmdir", "symlink_to", "unlink"}
_DELETING = {
    "discard",
    "empty_trash",
    "free_temporary_files",
    "publish_folder",
    "remove_empty",
    "remove_file",
    "remove_tree",
}


def outside_the_disk() -> Iterator[tuple[Module, ast.AST]]:
    """Yield the nodes of all modules outside the room of the disk."""
    for module in MODULES.values():
        if module.name == "datasets_rl" or room(module.name) != "disk":
            yield from ((module, node) for node in module.nodes)


def changes_the_disk(node: ast.AST) -> bool:
    """Return whether a node renames, fsyncs, locks or deletes. A temporary folder of the standard library may delete itself."""
    if isinstance(node, ast.Import):
        return any(alias.name in {"fcntl", "filelock", "msvcrt"} for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        names = {alias.name for alias in node.names}
        return node.module in {"fcntl", "filelock"} or (
            (node.module == "os" and bool(names & _OF_OS)) or (node.module == "shutil" and bool(names & _OF_SHUTIL))
        )
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    name, owner = node.func.attr, getattr(node.func.value, "id", "")
    if owner in {"os", "shutil"}:
        return name in {"os": _OF_OS, "shutil": _OF_SHUTIL}[owner]
    # Texts and dates have a `replace` too, of two arguments, or of named ones.
    is_replaced_path = name == "replace" and len(node.args) == 1 and not node.keywords
    return (name in _OF_PATHS and owner not in {"disk", "store"}) or is_replaced_path


def test_only_the_disk_renames_syncs_locks_or_deletes():
    """What survives a kill and a power cut is decided in one room; add a function to it if none there fits."""
    others = [f"{module.name}:{node.lineno}" for module, node in outside_the_disk() if changes_the_disk(node)]

    assert not others, f"call functions of datasets_rl.disk here, or add a function there:{listed(others)}"


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("os.replace(a, b)", True),
        ("path.unlink(missing_ok=True)", True),
        ("from os import fsync", True),
        ("import fcntl", True),
        ("shutil.rmtree(path)", True),
        ("(folder / name).replace(target)", True),
        ("text.replace('a', 'b')", False),
        ("date.replace(year=2026)", False),
        ("replace(settings, home=home)", False),
        ("disk.remove_file(path)", False),
        ("store.rename(old, new)", False),
        ("path.mkdir()", False),
    ],
)
def test_a_change_of_the_disk_is_recognized(code, changes):
    assert any(map(changes_the_disk, ast.walk(ast.parse(code)))) is changes


def test_other_rooms_use_the_names_that_the_disk_lists():
    inner = [
        f"{module.name}:{node.lineno}"
        for module, node in outside_the_disk()
        if isinstance(node, (ast.Import, ast.ImportFrom))
        and any(
            name.startswith("datasets_rl.disk.")
            for name in [getattr(node, "module", "") or "", *(alias.name for alias in node.names)]
        )
    ]

    assert not inner, listed(inner)


def test_no_function_deletes_while_its_docstring_says_that_it_returns_something():
    silent = [
        f"{module.name}.{node.name}"
        for module, node in outside_the_disk()
        if isinstance(node, ast.FunctionDef)
        and (ast.get_docstring(node) or "").startswith(("Return", "Yield"))
        and any(
            isinstance(inner, ast.Attribute) and inner.attr in _DELETING and getattr(inner.value, "id", "") == "disk"
            for inner in ast.walk(node)
        )
    ]

    assert not silent, listed(silent)


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
