"""The script that measures batches on a GPU runs without one, as far as that is possible."""

from __future__ import annotations

import gpu
import pytest

ARGUMENTS = ["--device", "cpu", "--steps", "2000", "--rounds", "1", "--only"]
NEED_GPU = ["waits", "kernels", "CUDA graph", "side stream"]


def test_checks_that_need_a_gpu_are_listed_as_not_run(capsys):
    assert gpu.main([*ARGUMENTS, "alignment", *NEED_GPU]) == 0

    printed = capsys.readouterr().out
    assert "ok       alignment: floating point numbers start at a multiple of 16 bytes" in printed
    assert [f"not run  {name}: needs a GPU" in printed for name in NEED_GPU] == [True] * 4
    assert printed.splitlines()[-1] == f"1 ok, failed: [], not run: {NEED_GPU}"


def test_a_failed_check_does_not_end_the_others(capsys, monkeypatch):
    monkeypatch.setattr(gpu, "differences", lambda *_: ["action"])

    assert gpu.main([*ARGUMENTS, "values", "alignment"]) == 1
    printed = capsys.readouterr().out
    assert "AssertionError: steps: action differ from the files" in printed
    assert printed.splitlines()[-1] == "1 ok, failed: ['values'], not run: []"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("check", ["values", "compiled", "microseconds", "training"])
def test_checks_succeed_in_main_memory(check, capsys):
    assert gpu.main([*ARGUMENTS, check]) == 0, capsys.readouterr().out
