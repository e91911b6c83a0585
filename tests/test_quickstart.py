"""The notebook that a new user opens first, and objects in notebooks."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import datasets_rl.recipes

NOTEBOOK = Path(datasets_rl.recipes.__file__).with_name("quickstart.ipynb")


def programs():
    document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]


def shown(program, names):
    """Run a cell; return the value of its last expression, which a notebook shows."""
    tree = ast.parse(program)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last is not None else None


def test_the_quickstart_runs_up_to_the_training(tmp_path, monkeypatch, capsys):
    """The first optimizer takes seconds to import, and a kernel to start; the slow test has both."""
    pytest.importorskip("matplotlib").use("agg")
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    names = {}
    before = [program for program in programs() if "policy" not in program]

    values = [shown(program, names) for program in before]

    assert len(before) == len(programs()) - 2
    assert capsys.readouterr().out.splitlines() == [
        "no episode is terminated: all are time-outs",
        f"{len(names['best'])} of 75 episodes",
    ]
    assert "<svg" in values[0]._repr_html_()
    assert [axes.get_xlabel() for axes in next(value for value in values if hasattr(value, "axes")).axes][
        -1
    ] == "action"


def test_the_quickstart_is_stored_without_outputs():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]

    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.slow
def test_the_quickstart_runs_in_a_kernel_and_its_policy_learns(tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)

    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()

    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    text = "".join(output.text for output in outputs if output.output_type == "stream")
    start, end = map(float, re.search(r"loss (\S+) at the start, (\S+) at the end", text).groups())
    assert end < start / 3
    kinds = {kind for output in outputs for kind in output.get("data", ())}
    assert {"text/html", "image/png"} <= kinds
    assert not [output for output in outputs if output.output_type == "stream" and output.name == "stderr"]
