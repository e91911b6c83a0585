"""Fingerprints are those of a slow model, whatever the blocks in which the rows come."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

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


KINDS = {
    "walk": lambda rng, count: rng.normal(size=(count, 3)).astype(np.float32),
    "number": lambda rng, count: rng.normal(size=(count, 1)),
    "line": lambda rng, count: (np.arange(count) * 0.05 + rng.integers(2))[:, None],
    "half": lambda rng, count: np.repeat(rng.normal(size=(count, 2)), 3, axis=0)[:count].astype(np.float16),
    "round": lambda rng, count: rng.integers(0, 3, (count, 2)).astype(np.float64),
    "code": lambda rng, count: rng.integers(0, rng.integers(1, 40), (count,)),
    "flag": lambda rng, count: rng.random((count, 1)) < rng.choice([0, 0.1, 0.5]),
    "text": lambda rng, count: rng.integers(0, 3, count),
    "image": lambda rng, count: rng.integers(0, 3, (count, 8, 9), dtype=np.uint8),
}
"""How the values of a field of an episode are made, given their number."""
EPISODES = {
    "kinds": st.lists(st.sampled_from([*KINDS]), min_size=1, max_size=5),
    "lengths": st.lists(st.one_of(st.integers(1, 6), st.integers(1, 3), st.integers(1, 40)), min_size=1, max_size=10),
    "seed": st.integers(0, 99),
    "blocks": st.lists(st.integers(1, 24), min_size=1, max_size=6),
    "pieces": st.lists(st.integers(1, 60), max_size=6),
    "forgotten": st.lists(st.integers(1, 20), max_size=2),
}
"""Kinds of the fields, numbers of steps, the seed of the values, the numbers of rows of the calls, again and again, rows at which
an episode is cut inside a call, and numbers of steps of episodes that are forgotten before."""


def added(printer, rows, lengths, cuts, pieces):
    """Return records and sketches, given the rows at which calls begin, and those at which runs inside calls begin."""
    stops, made = np.cumsum(lengths).tolist(), []
    for start, stop in pairwise(sorted({0, stops[-1], *(cut for cut in cuts if cut < stops[-1])})):
        edges = np.array(sorted({start, stop, *(edge for edge in [*stops, *pieces] if start < edge < stop)}))
        ended = np.isin(edges[1:], stops)
        part = {
            name: FieldRows(one.digests[start:stop], None if one.numbers is None else one.numbers[start:stop])
            for name, one in rows.items()
        }
        made.append(printer.add(part, {}, edges[:-1] - start, edges[1:] - start, ended))
    return b"".join(records.tobytes() for records, _ in made), b"".join(sketches.tobytes() for _, sketches in made)


def rows_of(kinds, lengths, seed):
    """Return fields of episodes: the sizes for a `Fingerprinter`, and the rows."""
    rng, sizes, rows = np.random.default_rng(seed), {}, {}
    for number, kind in enumerate(kinds):
        values = np.concatenate([KINDS[kind](rng, length) for length in lengths])
        name, known = f"{number} {kind}", kind not in {"text", "image"}
        sizes[name] = -1 if kind == "image" else values[0].size if values.dtype.kind == "f" else 0
        rows[name] = FieldRows(digest_numbers(values), values if known else None)
    return sizes, rows


def check_division(kinds, lengths, seed, blocks, pieces, forgotten):
    """Check that fingerprints do not depend on the calls and pieces in which the rows come."""
    sizes, rows = rows_of(kinds, lengths, seed)
    expected = added(Fingerprinter(sizes), rows, lengths, (), ())
    printer = Fingerprinter(sizes)
    for number, length in enumerate(forgotten):  # an episode that stays open
        _, others = rows_of(kinds, [length], number)
        printer.add(others, {}, np.array([0]), np.array([length]), np.array([False]))
        printer.forget()

    cuts = np.cumsum(np.resize(blocks, sum(lengths)))
    assert added(printer, rows, lengths, cuts.tolist(), pieces) == expected


@settings(max_examples=40)
@example(kinds=["walk"], lengths=[2, 1, 2], seed=0, blocks=[1, 3], pieces=[], forgotten=[])
@example(kinds=["walk", "number", "flag"], lengths=[1, 3, 5, 6], seed=0, blocks=[8], pieces=[], forgotten=[])
@example(kinds=["walk", "code", "round"], lengths=[300, 1, 2], seed=0, blocks=[100, 7], pieces=[50], forgotten=[200])
@given(**EPISODES)
def test_fingerprints_depend_on_no_division_of_the_rows(**episodes):
    check_division(**episodes)


@pytest.mark.slow
@settings(max_examples=1500)
@given(**EPISODES)
def test_fingerprints_depend_on_no_division_of_many_rows(**episodes):
    check_division(**episodes)


def test_a_conversion_loads_no_compiler(tmp_path):
    program = "import sys; from datasets_rl import download; download('demo/pendulum'); print('numba' in sys.modules)"
    environment = {**os.environ, "RLDS_HOME": str(tmp_path), "RLDS_NO_PROGRESS": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["False"]
