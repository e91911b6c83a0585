"""Another package inherits the contracts: its tests pass, and a contract finds each planted fault with what to do."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import datasets_rl
from datasets_rl import testing

ROOT = Path(datasets_rl.__file__).parents[1]
HERE = Path(__file__).parent
PAGE = (ROOT / "docs" / "contributing" / "contracts.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r'^```python title="test_lights.py"\n(.*?)^```$', PAGE, flags=re.MULTILINE | re.DOTALL)
CONTRACTS = [name for name in testing.__all__ if name.endswith("Contract") and name != "WriterStateContract"]


def planted():
    """Return the test that finds each planted fault, and a part of the sentence, by the name of the class."""
    names = {}
    for node in ast.parse((HERE / "planted_faults.py").read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            stated = {}
            for line in node.body:
                if isinstance(line, ast.Assign):
                    (target,) = line.targets
                    pairs = [(target, line.value)]
                    if isinstance(target, ast.Tuple):
                        pairs = zip(target.elts, line.value.elts, strict=True)
                    stated |= {one.id: value.value for one, value in pairs if isinstance(value, ast.Constant)}
            names[node.name] = stated["found_by"], stated["says"]
    return names


FAULTS = planted()


def run(folder, *words):
    """Run pytest in a process of its own on modules of another package, and return what it prints and its report."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RLDS_", "PYTEST_"))}
    path = os.pathsep.join([str(ROOT), str(HERE / "third_party")])
    report = folder / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", "-W", "error", "--rootdir", folder, "--junitxml", report]
    done = subprocess.run(
        # An option of the interpreter asks for the real Python: pytest rewrites the contracts before they are imported.
        [sys.executable, "-s", "-m", "pytest", *map(str, (*options, *words))],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=folder,
    )
    return done, report


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """The messages of the failed tests of the planted faults by class and test."""
    module = HERE / "planted_faults.py"
    tests = [f"{module}::{name}::{test}" for name, (test, _) in FAULTS.items() if test]
    without_cases = [f"{module}::{name}" for name, (test, _) in FAULTS.items() if not test]
    done, report = run(tmp_path_factory.mktemp("faults"), "--continue-on-collection-errors", *tests, *without_cases)
    assert done.returncode == 1, done.stdout + done.stderr
    found = {}
    for case in ET.parse(report).iter("testcase"):
        for failure in [*case.iter("failure"), *case.iter("error")]:
            cls = (case.get("classname") or case.get("name")).rpartition(".")[2]
            found.setdefault((cls, case.get("name").partition("[")[0]), failure.get("message") + (failure.text or ""))
    return found


@pytest.mark.timeout(600)  # a process of its own imports everything
@pytest.mark.slow
def test_the_examples_of_the_page_pass_in_another_package(tmp_path):
    (tmp_path / "test_lights.py").write_text("\n\n".join(EXAMPLES), encoding="utf-8")

    done, report = run(tmp_path, "test_lights.py")

    assert done.returncode == 0, done.stdout + done.stderr
    classes = {case.get("classname").rpartition(".")[2] for case in ET.parse(report).iter("testcase")}
    assert classes == {
        node.name for text in EXAMPLES for node in ast.parse(text).body if isinstance(node, ast.ClassDef)
    }


def test_the_page_has_an_example_of_three_to_ten_lines_for_each_contract():
    shown = {
        base.id: node.end_lineno - node.lineno + 1
        for text in EXAMPLES
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    }
    missing = [name for name in CONTRACTS if not 2 <= shown.get(name, 0) <= 10]

    assert not missing, f"docs/contributing/contracts.md needs an example of at most ten lines for {', '.join(missing)}"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_the_failure_says_what_to_do(fault, failures):
    test, sentence = FAULTS[fault]
    found = {name: message for (cls, name), message in failures.items() if cls == fault}
    messages = found.values() if not test else [found.get(test, "")]

    assert any(sentence.lower() in message.lower() for message in messages), (
        f"{test or 'the collection'} of {fault} does not say {sentence!r}; it fails in {sorted(found)}: {[*messages]}"
    )


def test_an_import_of_the_package_imports_no_pytest_and_a_missing_one_is_named_with_its_pip_line():
    program = """
import sys
import datasets_rl
assert "pytest" not in sys.modules, "the package imports pytest"
sys.modules["pytest"] = None  # a module that is None cannot be imported
try:
    import datasets_rl.testing
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.replace("\n", " ").startswith("datasets_rl.testing needs pytest")
    assert "pip install 'datasets-rl[testing]'" in done.stdout
