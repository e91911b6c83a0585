"""The names that users import are sorted, complete, importable, and listed without slow imports."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from slow_imports import SLOW_IMPORTS

import datasets_rl
from datasets_rl import errors

TESTS = Path(__file__).parent


def loaded_by(statement: str, *, env: dict[str, str] | None = None) -> set[str]:
    """Return the modules that are loaded in a new interpreter after a statement."""
    code = f"{statement}\nimport sys; print('\\nloaded:', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, **(env or {})}
    )
    return set(done.stdout.rpartition("loaded:")[2].split())


def test_vectors_need_no_reader_of_raw_files_only_priorities_a_compiler_and_specs_no_environments(tmp_path):
    """The import of the compiler takes a second; in one interpreter, because that of torch takes longer."""
    datasets_rl.load("demo/pendulum", root=tmp_path / "demo")
    program = """
import torch
from datasets_rl import load
load('demo/pendulum', 4, download=False).sample()
from datasets_rl import LazyTensorStorage, ReplayBuffer, from_minari
from datasets_rl.samplers import *
once = SamplerWithoutReplacement
for sampler in (RandomSampler(), once(), once(shuffle=False), SliceSampler(slice_len=2, ends=torch.zeros(8).bool())):
    rb = ReplayBuffer(storage=LazyTensorStorage(8), sampler=sampler, batch_size=4)
    rb.extend(torch.arange(6))
    rb.extend(torch.arange(2))
    rb.sample()
from_minari('{"type": "Discrete", "n": 2, "start": 1}')
"""
    loaded = {name.partition(".")[0] for name in loaded_by(program, env={"RLDS_HOME": str(tmp_path)})}

    assert "torch" in loaded
    assert not loaded & {"h5py", "PIL", "simplejpeg", "pyarrow", "numba", "llvmlite", "gymnasium", "minari"}


def test_names_are_sorted_and_unique():
    assert list(datasets_rl.__all__) == sorted(set(datasets_rl.__all__))


def test_every_name_exists():
    missing = []
    for name in datasets_rl.__all__:
        try:
            value = getattr(datasets_rl, name)
        except (AttributeError, ImportError) as error:
            missing.append(f"{name}: {error}")
        else:
            if value is None:
                missing.append(f"{name}: None")

    assert not missing, "\n".join(["", *missing])
    assert set(datasets_rl.__all__) <= set(dir(datasets_rl))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Resize", "datasets_rl.transforms.Resize"),
        ("UnknownIdError", "datasets_rl.errors.UnknownIdError"),
        ("ReplayBufer", "datasets_rl.ReplayBuffer or datasets_rl.RayReplayBuffer"),
        ("load_dataset", "datasets_rl.load"),
        ("open_dataset", "datasets_rl.load"),
    ],
)
def test_a_name_that_is_not_at_the_root_is_answered_with_where_it_is(name, meant):
    with pytest.raises(AttributeError, match=rf"Did you mean {meant}\?$"):
        getattr(datasets_rl, name)
    with pytest.raises(ImportError, match=rf"^cannot import name '{name}' .* Did you mean {meant}\?$"):
        exec(f"from datasets_rl import {name}")


def test_asking_for_a_name_that_does_not_exist_imports_nothing():
    assert "torch" not in loaded_by("import datasets_rl; assert not hasattr(datasets_rl, 'Resize')")
    with pytest.raises(AttributeError, match=r"has no attribute '__wrapped__'$"):
        _ = datasets_rl.__wrapped__


def test_a_module_of_public_names_needs_no_import_of_its_own():
    assert "datasets_rl.errors" in loaded_by("import datasets_rl; datasets_rl.errors.UnknownIdError")


def test_the_root_has_few_names_and_none_of_transforms_errors_and_common_words():
    moved = {*errors.__all__, "Compose", "Hash", "Member", "Stack", "Step"}

    assert len(datasets_rl.__all__) <= 190
    assert not moved & set(datasets_rl.__all__)


def test_the_root_has_every_name_of_torchrl_but_those_that_a_table_says_are_left_out():
    """The file has `sorted(torchrl.data.__all__)` of TorchRL 0.14.1."""
    names = set((TESTS / "golden" / "torchrl_data_names.txt").read_text("utf-8").split())
    page = (TESTS.parent / "docs" / "replay-buffers.md").read_text("utf-8")
    rows = [line.split("|")[1] for line in page.partition("## Left out on purpose")[2].splitlines() if "|" in line]
    left_out = names & {name for row in rows for name in re.findall(r"`(?:torchrl\.data\.)?(\w+)`", row)}

    assert len(names) == 115
    assert names - left_out == names & {*datasets_rl.__all__}
    assert all(not hasattr(datasets_rl, name) for name in left_out)


def test_the_names_of_the_reference_documents_are_at_the_root():
    from datasets_rl import rlhf, specs, transforms

    for name in rlhf.__all__:
        if name not in {"KLControllerBase", "pre_tokenization_hook"}:
            assert getattr(datasets_rl, name) is getattr(rlhf, name)
    assert datasets_rl.Choice is specs.ChoiceSpec
    assert datasets_rl.MultiStepTransform is transforms.MultiStepTransform


def test_every_error_is_listed():
    defined = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Warning | Exception)
    }

    assert {name for name in defined if vars(errors)[name].__module__ == errors.__name__} < set(errors.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'ReplayBufer'"):
        _ = datasets_rl.ReplayBufer


def test_no_public_function_has_the_name_of_a_module():
    """Importing the module would replace the function."""
    functions = {name for name in datasets_rl.__all__ if inspect.isfunction(getattr(datasets_rl, name))}
    package = Path(inspect.getfile(datasets_rl)).parent

    assert functions.isdisjoint(path.stem for path in package.iterdir())


@pytest.mark.parametrize(
    "statement",
    ["import datasets_rl", "import datasets_rl; datasets_rl.Manifest, datasets_rl.locate, datasets_rl.Episode"],
)
def test_importing_the_package_and_locating_a_dataset_import_no_slow_module(statement):
    assert loaded_by(statement).isdisjoint({*SLOW_IMPORTS, "rich"})


def test_importing_the_package_does_not_import_numpy():
    assert "numpy" not in loaded_by("import datasets_rl")
