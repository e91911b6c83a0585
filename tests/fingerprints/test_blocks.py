"""Fingerprints are those of a slow model, whatever the blocks in which the rows come."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from datasets_rl.fingerprints.canonical import digest_numbers, fine_rows
from datasets_rl.fingerprints.fingerprint import FieldRows, Fingerprinter
from datasets_rl.fingerprints.information import COUNTED, EVIDENCE_BITS, FEWEST

M = 2**64 - 1
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
FLOATS = {"observation": 3, "action": 1, "reward": 1}
SIZES = {**FLOATS, "code": 0, "flag": 0, "image": -1}


def mixed(word):
    word = (word ^ (word >> 30)) * FIRST & M
    word = (word ^ (word >> 27)) * SECOND & M
    return word ^ (word >> 31)


def recording(rng, count):
    """Return fields of an episode: a walk with special values, a wave, rewards, codes, flags and images."""
    walk = np.cumsum(rng.normal(size=(count, 3)), axis=0).astype(np.float32)
    chosen = rng.random(walk.shape) < rng.choice([0, 0.01])
    walk[chosen] = rng.choice([np.nan, np.inf, 0, -0.0], np.count_nonzero(chosen))
    wave = np.sin(np.arange(count) * 0.3)[:, None] * rng.normal()
    return {
        "observation": walk.round() if rng.random() < 0.2 else walk,
        "action": wave if rng.random() < 0.5 else np.arange(count)[:, None] * 0.05,
        "reward": rng.integers(0, 3, (count, 1)).astype(np.float32),
        "code": rng.integers(0, 20, (count, 1)),
        "flag": (rng.random((count, 1)) < rng.choice([0, 0.02, 0.5])),
        "image": rng.integers(0, 3, (count, 8, 9), dtype=np.uint8),
    }


def prints(fields, ends, block):
    """Return records and sketches of episodes that end at these rows, given the number of rows of a block."""
    printer = Fingerprinter(SIZES)
    made = []
    for start in range(0, ends[-1], block):
        stop = min(start + block, ends[-1])
        cuts = np.array([start, *(end for end in ends if start < end < stop), stop]) - start
        rows = {}
        for name, values in fields.items():
            part = values[start:stop]
            rows[name] = FieldRows(digest_numbers(part), None if name == "image" else part)
        ended = np.isin(cuts[1:] + start, ends)
        finals = {"observation": np.zeros(np.count_nonzero(ended), np.uint64)}
        made.append(printer.add(rows, finals, cuts[:-1].copy(), cuts[1:].copy(), ended))
    return [np.concatenate(parts) for parts in zip(*made, strict=True)]


def slow_digest(digests):
    total = sum(digest * (mixed((step + 1) * GOLDEN & M) | 1) for step, digest in enumerate(digests))
    return mixed(total + len(digests) & M)


def continues_line(values, step):
    if values[0].size != 1 or step < 2:
        return False
    first, middle, last = (float(values[step - back].reshape(-1)[0]) for back in (0, 1, 2))
    return abs(last - 2 * middle + first) <= 1e-6 * (abs(last) + abs(middle) + abs(first))


def slow_bits(digests, values):
    """Return the bits of information of the rows of an episode, by sets of Python."""
    count = len(digests)
    if count < FEWEST:
        return 0
    changes = {0} | {step for step in range(1, count) if digests[step] != digests[step - 1]}
    active = [step for step in range(count) if any(step - back in changes for back in range(8))][:COUNTED]
    fine = np.ones(count, bool) if values is None else fine_rows(values, np.arange(count))
    if values is not None:
        active = [step for step in active if not continues_line(values, step)]
    values_of = {kind: {digests[step] for step in active if fine[step] == kind} for kind in (True, False)}
    sequences = {tuple(digests[max(step - 7, 0) : step + 1]) for step in active if not fine[step]}
    log2 = max(len(values_of[True]) + len(values_of[False]), 1).bit_length() - 1
    return min(16 * len(values_of[True]) + log2 * len(sequences), EVIDENCE_BITS)


def slow_codes(name, values):
    if name not in FLOATS:
        return [digest >> 32 for digest in digest_numbers(values).tolist()]
    rows = (values.reshape(len(values), -1).astype(np.float32) + np.float32(0)).view(np.uint32).tolist()
    pairs = [[(row[place] + 4096) % 2**32 >> 16 for place in (0, len(row) // 2)] for row in rows]
    return [first | (second << 16) for first, second in pairs]


def slow_sketch(fields):
    windows = {}
    for name, values in fields.items():
        if name == "image":
            continue
        codes = slow_codes(name, values)
        sampled, distances = (12, (0, 4, 8, 12)) if name in FLOATS else (4, range(16))
        for step in range(15, len(codes)):
            if codes[step] != codes[step - 1] and codes[step] * 0x9E3779B1 % 2**32 < 2**32 // sampled:
                word = GOLDEN
                for distance in distances:
                    word = (word ^ codes[step - distance]) * FIRST & M
                    word ^= word >> 29
                hashed = max(mixed(word) >> 32, 1)
                windows[hashed] = min(windows.get(hashed, step), step)
    kept = sorted(windows.items())[:64]
    return kept + [(0, 0)] * (64 - len(kept))


@pytest.mark.parametrize("seed", range(12))
def test_fingerprints_are_those_of_a_slow_model_in_any_blocks(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 900))
    fields = recording(rng, count)
    ends = np.unique([*rng.integers(1, count + 1, rng.integers(0, 6)), count]).tolist()

    records, sketches = prints(fields, ends, count)

    for block in (1, 7, int(rng.integers(3, count + 4)))[0 if count < 200 else 1 :]:
        for one, other in zip((records, sketches), prints(fields, ends, block), strict=True):
            np.testing.assert_array_equal(one, other)
    for number, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
        part = {name: values[start:stop] for name, values in fields.items()}
        for name, values in part.items():
            digests = digest_numbers(values).tolist()
            assert records[name]["digest"][number] == slow_digest(digests)
            assert records[name]["bits"][number] == slow_bits(digests, None if name == "image" else values)
        assert sketches[number].tolist() == slow_sketch(part)


def test_a_conversion_loads_no_compiler(tmp_path):
    program = "import sys; from datasets_rl import download; download('demo/pendulum'); print('numba' in sys.modules)"
    environment = {**os.environ, "RLDS_HOME": str(tmp_path), "RLDS_NO_PROGRESS": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["False"]
