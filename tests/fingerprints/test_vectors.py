"""The loops in numpy and the compiled loops give the same fingerprints, whatever the blocks in which the rows come."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from datasets_rl.fingerprints import canonical, fingerprint, loops, sketch, sketch_loops, vectors
from datasets_rl.fingerprints.constants import STATE

FORMS = {"compiled": (loops, sketch_loops), "numpy": (vectors, vectors)}


def special(rng, shape, dtype):
    """Return numbers of which some are zeros, NaN, infinite or whole."""
    values = rng.normal(size=shape) * rng.choice([1, 1e-3, 1e30])
    chosen = rng.random(shape) < 0.1
    values[chosen] = rng.choice([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, 0.5], np.count_nonzero(chosen))
    return values.astype(dtype)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_digests_of_rows_are_equal(seed, dtype):
    rng = np.random.default_rng(seed)
    values = special(rng, (rng.integers(1, 50), rng.integers(1, 9)), dtype)
    found = []
    for form in (loops, vectors):
        digests, fine = np.zeros((len(values), 2), np.uint64), np.zeros(len(values), bool)
        form.digest_rows(values, digests, fine)
        found.append((digests.tolist(), fine.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", range(20))
def test_digests_of_bytes_are_equal(seed):
    rng = np.random.default_rng(seed)
    ends = np.cumsum(rng.integers(0, 30, 20)).astype(np.int64)
    data = rng.integers(0, 256, ends[-1], dtype=np.uint8)
    found = []
    for form in (loops, vectors):
        digests = np.zeros((len(ends), 2), np.uint64)
        form.digest_bytes(data, ends, digests)
        found.append(digests.tolist())
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", range(40))
def test_rows_fold_to_equal_episodes(seed):
    """The state of an episode that is open is equal, too, so that a process can continue with the other form."""
    rng = np.random.default_rng(seed)
    states = [(np.zeros(STATE, np.uint64), np.zeros(2)) for _ in FORMS]
    for _ in range(4):
        count = int(rng.integers(1, 300))
        cuts = np.unique([0, *rng.integers(0, count, rng.integers(0, 5)), count])
        ended = np.ones(len(cuts) - 1, bool)
        ended[-1] = rng.random() < 0.6
        pool = rng.integers(0, 2**63, (rng.integers(1, 400), 2)).astype(np.uint64) * np.uint64(2)
        rows, fine = pool[rng.integers(0, len(pool), count)], rng.random(count) < 0.5
        values = (np.empty(0), np.arange(count) * 0.1, special(rng, count, np.float64))[seed % 3]
        found = []
        for (state, last), form in zip(states, (loops, vectors), strict=True):
            digests, counts = np.zeros((len(ended), 2), np.uint64), np.zeros((len(ended), 2), np.uint32)
            form.fold_rows(rows, fine, values, cuts[:-1].copy(), cuts[1:].copy(), ended, state, last, digests, counts)
            found.append((digests, counts, state.copy(), last.copy()))
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)


def recording(rng, count):
    """Return fields of an episode: a walk with special values, a wave, rewards, codes and images."""
    walk = np.cumsum(rng.normal(size=(count, 3)), axis=0).astype(np.float32)
    chosen = rng.random(walk.shape) < rng.choice([0, 0.01])
    walk[chosen] = rng.choice([np.nan, np.inf, 0], np.count_nonzero(chosen))
    return {
        "observation": walk.round() if rng.random() < 0.2 else walk,
        "action": np.sin(np.arange(count) * 0.3)[:, None] * rng.normal(),
        "reward": rng.integers(0, 3, (count, 1)).astype(np.float32),
        "code": rng.integers(0, 20, (count, 1)),
        "image": rng.integers(0, 3, (count, 8, 9), dtype=np.uint8),
    }


def prints(fields, ends, block):
    """Return records and sketches of episodes that end at these rows, given the number of rows of a block."""
    printer = fingerprint.Fingerprinter({"observation": 3, "action": 1, "reward": 1, "code": 0, "image": 0})
    made = []
    for start in range(0, ends[-1], block):
        stop = min(start + block, ends[-1])
        cuts = np.array([start, *(end for end in ends if start < end < stop), stop]) - start
        rows = {}
        for name, values in fields.items():
            part = values[start:stop]
            is_float = part.dtype.kind == "f"
            rows[name] = fingerprint.FieldRows(*canonical.digest_numbers(part), part if is_float else None)
        ended = np.isin(cuts[1:] + start, ends)
        finals = {"observation": np.zeros((np.count_nonzero(ended), 2), np.uint64)}
        made.append(printer.add(rows, finals, cuts[:-1].copy(), cuts[1:].copy(), ended))
    return [np.concatenate(parts) for parts in zip(*made, strict=True)]


@pytest.mark.parametrize("seed", range(30))
def test_fingerprints_depend_on_no_form_and_no_block(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 900))
    fields = recording(rng, count)
    ends = np.unique([*rng.integers(1, count + 1, rng.integers(0, 6)), count]).tolist()
    found = []
    for rows, windows in FORMS.values():
        for module in (canonical, fingerprint):
            monkeypatch.setattr(module, "row_loops", lambda _, rows=rows: rows)
        monkeypatch.setattr(sketch, "window_loops", lambda _, windows=windows: windows)
        found += [prints(fields, ends, block) for block in (count, int(rng.integers(3, count + 4)))]
    for other in found[1:]:
        for one, another in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, another)


def test_a_small_conversion_loads_no_compiler(tmp_path):
    program = "import sys; from datasets_rl import download; download('demo/pendulum'); print('numba' in sys.modules)"
    environment = {**os.environ, "RLDS_HOME": str(tmp_path), "RLDS_NO_PROGRESS": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["False"]
