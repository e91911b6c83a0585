"""Plants faults in the functions of the package, one at a time, and reports the faults that no test finds.

A table, ``tests/mutations/<area>.toml``, has the test modules of an area, and the faults of each file: the exact text, and
the wrong text in its place. `make mutations` runs all tables, `make mutations AREAS=samplers` runs one. pytest collects the
tests once. Each fault is planted in a forked child, which runs the tests nearest to the fault first, until a test fails.

A change of the tests must lose no fault: run the tables before and after the change, with ``--results`` and ``--known``.
Tests that take long without a fault are left out. Other processes that a test starts, and compiled loops, have no fault.
The tool needs Python 3.11.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomllib

ROOT = Path(__file__).parents[2]
TABLES = Path(__file__).parent
LONG_SECONDS = 0.3
"""A test that takes longer is left out, unless the table has another limit, `long`."""
PROCESSOR_SECONDS, WAIT_SECONDS = 20, 1200
"""A fault may be an endless loop: the tests of a fault have failed after this time of the processor, or of waiting."""


@dataclass(frozen=True)
class Fault:
    """A text of a file of the package, and the wrong text in its place."""

    path: str
    text: str
    wrong: str
    tests: tuple[str, ...]
    """Parts of the names of the tests to run, nearest first."""

    def __str__(self) -> str:
        return f"{self.path}: {self.text.strip()!r} -> {self.wrong.strip()!r}"

    @property
    def module(self) -> str:
        """The name of the module."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def choose(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """Return the tests to run, nearest first."""
        ranks = [next((rank for rank, part in enumerate(self.tests) if part in item.nodeid), None) for item in items]
        chosen = [(rank, place) for place, rank in enumerate(ranks) if rank is not None]
        return [items[place] for _, place in sorted(chosen)]


def read_table(path: Path) -> tuple[list[str], float, list[Fault]]:
    """Return the test modules of a table, the seconds from which a test is left out, and the faults."""
    table = tomllib.loads(path.read_text("utf-8"))
    faults = [
        Fault(file, text, wrong, tuple(entry["tests"]))
        for file, entry in table["files"].items()
        for text, wrong in entry["faults"]
    ]
    return table["tests"], table.get("long", LONG_SECONDS), faults


def plant(fault: Fault) -> None:
    """Replace the code of the functions that the fault changes, in this process.

    Raises:
        ValueError: If the file does not have the text exactly once, or the text is outside of functions.
    """
    file = ROOT / fault.path
    source = file.read_text("utf-8")
    if source.count(fault.text) != 1 or fault.text.count("\n") != fault.wrong.count("\n"):
        raise ValueError(f"the file has the text {source.count(fault.text)} times, expected once, with as many lines")
    codes = dict(_codes(compile(source.replace(fault.text, fault.wrong), str(file), "exec")))
    gc.unfreeze()
    changed = 0
    for function in gc.get_objects():
        # `isinstance` would ask the proxies of other libraries for their class.
        if type(function) is types.FunctionType and function.__code__.co_filename == str(file):
            code = codes.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
            if code is not None and code != function.__code__:
                function.__code__ = code
                changed += 1
    if not changed:
        raise ValueError("no function has the text")


def _codes(code: types.CodeType) -> Iterator[tuple[tuple[str, int], types.CodeType]]:
    yield (code.co_qualname, code.co_firstlineno), code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


class Planter:
    """Plugin of pytest that runs the collected tests once for each fault.

    Args:
        faults: The faults.
        long: The seconds from which a test is left out.
        results: The results so far, by the fault as text.
        file: The JSON file of the results.
        known: The results of an earlier run: the test that has found a fault runs first.
    """

    def __init__(
        self, faults: list[Fault], long: float, results: dict[str, Any], file: Path, known: dict[str, Any]
    ) -> None:
        self._faults = faults
        self._long = long
        self._results = results
        self._file = file
        self._known = known
        self._screen = os.dup(2)  # pytest takes what is written to the standard streams
        self._note = -1
        self._log = Path(tempfile.mkdtemp(prefix="mutations-")) / "log"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests without a fault, and then with each fault."""
        for fault in self._faults:
            importlib.import_module(fault.module)
        used = {item for fault in self._faults for item in fault.choose(session.items)}
        if self._in_child(lambda: self._run([item for item in session.items if item in used])):
            raise pytest.UsageError(f"{self._log.read_text()} fails without a fault")
        seconds = json.loads(self._log.with_name("seconds").read_text())
        short = [item for item in session.items if seconds.get(item.nodeid, 0) < self._long]
        for number, fault in enumerate(self._faults, 1):
            if str(fault) in self._results:
                continue
            first = self._known.get(str(fault), {}).get("by")
            items = sorted(fault.choose(short), key=lambda item: item.nodeid != first)
            start = time.monotonic()
            code = self._in_child(lambda: plant(fault), lambda: self._run(items))  # noqa: B023 - used at once
            result = {0: "missed", 1: "found"}.get(code, "outdated")
            by = self._log.read_text()
            self._results[str(fault)] = {"result": result, "by": by, "seconds": round(time.monotonic() - start, 1)}
            os.write(self._screen, f"{number}/{len(self._faults)} {result} {fault} [{by}]\n".encode())
            self._file.write_text(json.dumps(self._results, indent=1))
        return True

    def _in_child(self, *steps: Any) -> int:
        """Run functions in a child; return 1 if the last function returns True or the time is over, 2 for an error, or 0."""
        process = os.fork()
        if not process:
            code = 2
            try:
                os.setsid()
                if len(steps) > 1:
                    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS))
                self._note = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                for step in steps:
                    code = int(bool(step()))
            except BaseException as error:  # noqa: BLE001 - the child must end here
                os.write(self._note, repr(error).encode())
                code = 2
            finally:
                os._exit(code)
        ended, _, _ = select.select([child := os.pidfd_open(process)], [], [], WAIT_SECONDS)
        os.close(child)
        os.killpg(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        code = os.waitstatus_to_exitcode(status)
        return 1 if code < 0 or not ended else code

    def _run(self, items: list[pytest.Item]) -> bool:
        """Run tests until the first failure, and return whether a test has failed."""
        seconds = {}
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.pluginmanager.unregister(name="terminalreporter")
            start = sum(os.times()[:4])
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            seconds[item.nodeid] = sum(os.times()[:4]) - start
            if item.session.testsfailed:
                os.write(self._note, item.nodeid.encode())
                return True
        self._log.with_name("seconds").write_text(json.dumps(seconds))
        return False


def main() -> int:
    """Run the tables, and return 1 if a fault is not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("areas", nargs="*", help="names of tables; by default all")
    parser.add_argument("--results", type=Path, help="a JSON file of results, which a later run continues")
    parser.add_argument(
        "--known", type=Path, help="results of an earlier run: the test that has found a fault runs first"
    )
    arguments = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    import torch

    torch.set_num_threads(1)  # threads do not survive a fork
    file = arguments.results or Path(tempfile.mkdtemp(prefix="mutations-")) / "results.json"
    known = json.loads(arguments.known.read_text()) if arguments.known else {}
    results = json.loads(file.read_text()) if file.exists() else {}
    planted = []
    for path in sorted(TABLES.glob("*.toml")):
        if arguments.areas and path.stem not in arguments.areas:
            continue
        tests, long, faults = read_table(path)
        planted += faults
        # A process for each table, because pytest imports the modules of tests once.
        if process := os.fork():
            os.waitpid(process, 0)
            results |= json.loads(file.read_text()) if file.exists() else {}
        else:
            planter = Planter(faults, long, results, file, known)
            os._exit(pytest.main(["-q", "-p", "no:cacheprovider", *tests], plugins=[planter]))
    missed = [str(fault) for fault in planted if results.get(str(fault), {}).get("result") != "found"]
    print(f"{len(planted) - len(missed)} of {len(planted)} faults found", *missed, sep="\n  ")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
