"""What a change most likely broke, in about half a minute: ``make quick`` runs ruff, mypy, and the tests nearest to the change.

The change is what differs from the last commit, or from SINCE: ``make quick SINCE=main``. The tests of a changed module
are the test modules of the same name, then those of the same folder that use one of its names. They end at the first
failure or when their time is over, so that a green run is no proof: `.ci/run` is.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SECONDS = 15
SOURCES = "tests/conformance/test_sources.py"
CONFORMANCE = {
    "specs": ["test_specs"],
    "storages": ["test_storages", "test_mutable_storages"],
    "samplers": ["test_samplers_and_writers"],
    "writers": ["test_samplers_and_writers"],
    "transforms": ["test_transforms"],
    "preprocessing": ["test_steps"],
    "exporting": ["test_export_formats"],
    "format": ["test_image_forms"],
}


def changed_files(since):
    """Return the paths of the files that differ from a commit or are new, without deleted files."""
    commands = [["git", "diff", "--name-only", since], ["git", "ls-files", "--others", "--exclude-standard"]]
    printed = [
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout for command in commands
    ]
    return [path for path in dict.fromkeys("\n".join(printed).split("\n")) if path and (ROOT / path).is_file()]


def nearest_tests(path, root=ROOT):
    """Return the test modules that are nearest to a file, nearest first, and the source whose cases concern it.

    Args:
        path: The file, relative to the root.
        root: The folder of the checkout.

    Returns:
        Paths relative to the root, and the name of a source or None.
    """
    parts = Path(path).parts
    if parts[0] == "tests":
        return ([path] if Path(path).name.startswith("test_") and path.endswith(".py") else []), None
    if parts[0] not in ("datasets_rl", "cli", "recipes") or not path.endswith(".py"):
        return [], None
    inside = parts[1:] if parts[0] == "datasets_rl" else parts
    folder = root / "tests" / (inside[0] if len(inside) > 1 else "")
    modules = sorted(folder.rglob("test_*.py") if len(inside) > 1 else folder.glob("test_*.py"))
    modules += [root / "tests/conformance" / f"{name}.py" for name in CONFORMANCE.get(inside[0], [])]
    stems = {Path(path).stem.lstrip("_"), *inside[1:-1]} - {"__init__"}
    same = [
        module for module in modules if any(re.match(rf"test_{re.escape(stem)}(_|\.py)", module.name) for stem in stems)
    ]
    uses = re.compile(rf"\b({'|'.join(map(re.escape, defined_names(root / path)))})\b")
    using = [module for module in modules if module not in same and uses.search(module.read_text("utf-8"))]
    source = inside[1] if inside[0] == "sources" and len(inside) > 2 else None
    return [module.relative_to(root).as_posix() for module in same + using], source


def defined_names(path):
    """Return the names of the public classes and functions of a module, and the dotted name of the module itself."""
    tree = ast.parse(path.read_text("utf-8"))
    kinds = ast.ClassDef | ast.FunctionDef
    return [
        ".".join(path.with_suffix("").parts[-2:]),
        *(node.name for node in tree.body if isinstance(node, kinds) and node.name[0] != "_"),
    ]


class Nearest:
    """Runs tests until their time is over, of the suite of sources only the cases of the changed sources."""

    def __init__(self, sources):
        self.sources = sources
        self.left = 0

    def pytest_collection_modifyitems(self, items):
        case = re.compile(rf"\[({'|'.join(self.sources)})\d")
        items[:] = [item for item in items if SOURCES not in item.nodeid or case.search(item.nodeid)]

    def pytest_collection_finish(self):
        self.end = time.monotonic() + SECONDS

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self):
        if time.monotonic() < self.end:
            return None
        self.left += 1
        return True

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.write_line(
            f"{self.left} of the nearest tests did not run: the time was over" if self.left else ""
        )


def main(since):
    files = [path for path in changed_files(since) if path.endswith((".py", ".pyi"))]
    if not files:
        print(f"no Python file differs from {since}")
        return 0
    folder = Path(sys.executable).parent
    commands = [
        [folder / "ruff", "check", "--quiet", *files],
        [folder / "ruff", "format", "--check", "--quiet", *files],
    ]
    if any(path.startswith(("datasets_rl/", "cli/", "recipes/")) for path in files):
        commands.append([folder / "mypy"])
    for command in commands:
        print("$", command[0].name, *command[1:], flush=True)
        if ended := subprocess.run(command, cwd=ROOT, check=False).returncode:
            return ended
    near = [nearest_tests(path) for path in files]
    modules = dict.fromkeys(module for tests, _ in near for module in tests)
    sources = sorted({source for _, source in near if source})
    if sources:
        modules[SOURCES] = None
    if not modules:
        return 0
    print("$ pytest", *modules, *sources, flush=True)
    os.chdir(ROOT)
    return pytest.main(["-x", "-q", "-n", "0", "-r", "", *modules], plugins=[Nearest(sources)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "HEAD"))
