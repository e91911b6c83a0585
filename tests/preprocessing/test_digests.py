"""The digest of a function is the same in every process, and changes with any edit of the function."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from datasets_rl.preprocessing import Recipe
from datasets_rl.preprocessing.digests import code_digest

CASES = {
    "constant": "fn = lambda t: t * {}",
    "helper": "def helper(t): return t * {}\ndef fn(t): return helper(t)",
    "helper-of-a-lambda": "def helper(t): return t * {}\ndef fn(t): return t.apply(lambda x: helper(x))",
    "helper-of-a-loop": "def helper(t): return t * {}\ndef fn(t): return {{key: helper(key) for key in t}}",
    "helper-that-is-cached": (
        "import functools\n@functools.cache\ndef helper(t): return t * {}\ndef fn(t): return helper(t)"
    ),
    "default": "def fn(t, by={}): return t * by",
    "closure": "def made(by): return lambda t: t * by\nfn = made({})",
    "class-that-is-used": "class Of:\n    by = {}\ndef fn(t): return t * Of.by",
    "object": "class Of:\n    def __call__(self, t): return t * {}\nfn = Of()",
    "state-of-an-object": "class Of:\n    def __init__(self): self.by = {}\n    def __call__(self, t): ...\nfn = Of()",
    "method": "class Of:\n    def times(self, t): return t * {}\nfn = Of().times",
    "partial": "import functools\ndef times(by, t): return t * by\nfn = functools.partial(times, {})",
    "array": "import numpy as np\nby = np.full(3, {})\ndef fn(t): return t * by",
    "tensor": "import torch\nby = torch.full((), {})\ndef fn(t): return t * by",
    "pattern": "import re\nby = re.compile('a{}')\ndef fn(t): return by.match(t)",
    "network": (
        "import torch\nby = torch.nn.Linear(2, 2)\nfor one in by.parameters(): one.data.fill_({})\n"
        "def fn(t): return by(t)"
    ),
    "ring": "by = [{}]\nby.append(by)\ndef fn(t): return by",
}


def read(folder, text, name="own"):
    """Import a file with this text as a new module."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    exec(compile(text, str(path), "exec", dont_inherit=True), vars(module))
    return module


@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_an_edit_changes_the_digest_and_a_second_import_does_not(tmp_path, text):
    one, same, edited = (code_digest(read(tmp_path, text.format(by)).fn) for by in (1, 1, 2))

    assert one == same
    assert one != edited


def test_a_variable_without_a_value_is_not_an_error(tmp_path):
    text = "def made():\n    def fn(t): return other(t)\n    yield fn\n    other = {}\n    yield fn\n"

    def told(by, times):
        made = read(tmp_path, text.format(by)).made()
        return [code_digest(next(made)) for _ in range(times)][-1]

    assert told("abs", 1) == told("min", 1) != told("abs", 2) != told("min", 2)


STEP = """
from dataclasses import dataclass
from datasets_rl.preprocessing import Step
class Base(Step):
    def times(self, block): return {}
    @staticmethod
    def plus(block): return {}
    @property
    def least(self): return {}
@dataclass
class Mine(Base):
    weight: float = 0.1
    def __call__(self, block): return self.times(block)
"""


@pytest.mark.parametrize("edited", [(2, 1, 1), (1, 2, 1), (1, 1, 2)], ids=["base", "static", "property"])
def test_the_digest_of_a_custom_step_covers_its_class(tmp_path, edited):
    def told(by):
        return Recipe([read(tmp_path, STEP.format(*by)).Mine()]).to_json()

    assert told((1, 1, 1)) == told((1, 1, 1))
    assert told((1, 1, 1)) != told(edited)


def test_the_digest_covers_user_modules(tmp_path, monkeypatch):
    def told(by):
        monkeypatch.setitem(sys.modules, "beside", read(tmp_path, f"def times(t): return t * {by}", "beside"))
        return code_digest(read(tmp_path, "import beside\ndef fn(t): return beside.times(t)").fn)

    assert told(1) == told(1)
    assert told(1) != told(2)


@pytest.mark.usefixtures("warm_python")
def test_another_process_computes_the_same_digest(tmp_path):
    text = f"""
import torch
{CASES["object"].format(1)}
words, by, other = {{"a", "b", "c"}}, torch.ones(3), Of()
def fn(t): return [t in words, t in {{"d", "e"}}, by, other]
from datasets_rl.preprocessing.digests import code_digest
print(code_digest(fn))
"""
    (tmp_path / "script.py").write_text(text)
    words = [sys.executable, str(tmp_path / "script.py")]
    one, two = (subprocess.run(words, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert one == two
