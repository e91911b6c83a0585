"""Permutations that are computed position by position, so that an order of any length takes no memory and no start.

A permutation of [0, N) is a cipher with the numbers below N as blocks: the generalized Feistel cipher of Black and
Rogaway (Ciphers with Arbitrary Finite Domains, CT-RSA 2002, section 5), with a = ceil(sqrt(N)) and b = ceil(N / a):

    position    x = left * b + right                         left < a, right < b
    rounds      left = (left + F(right)) mod a               right unchanged, so that the round can be undone
                right = (right + F(left)) mod b              and so on in turns
    cycle walk  a result of N or more is the next position   a b - N < a, so this is 1 position of sqrt(N)

Each round can be undone, so that the rounds permute [0, a b), and the walk along a cycle permutes [0, N). F is the finalizer
of SplitMix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014) of its argument plus the
key of the round, and the keys are consecutive numbers of that generator. The order is random for sampling, not for secrets.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from datasets_rl.loop_compiler import compile_for

_ROUNDS = 8
"""An even number. With 4 rounds, the differences of neighbors are measurably not uniform."""
_LARGEST = 1 << 62
_BLOCK = 256
"""Positions that are computed together, in the cache nearest to the core."""
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def permuted(positions: range, count: int, seed: int) -> NDArray[np.int64]:
    """Return the numbers at consecutive positions of a permutation of [0, `count`), int64 [n].

    Args:
        positions: Positions below `count`, with a step of 1.
        count: Number of elements, N, 1 to 2**62.
        seed: Selects the permutation, 0 to 2**64 - 1.
    """
    if not 0 <= positions.start <= positions.stop <= count <= _LARGEST:
        raise ValueError(f"the positions {positions} are not within [0, {count:,}), or that is not within [0, 2**62)")
    rows = max(math.isqrt(count - 1) + 1, 1)
    numbers = np.empty(len(positions), np.int64)
    _permute(positions.start, count, np.uint64(rows), np.uint64(-(-count // rows)), np.uint64(seed), numbers)
    return numbers


@compile_for("uint64(uint64)")
def _mixed(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@compile_for("void(uint64[::1], uint64[::1], uint64, uint64, uint64)")
def _apply_rounds(
    lefts: NDArray[np.uint64],
    rights: NDArray[np.uint64],
    left_size: np.uint64,
    right_size: np.uint64,
    seed: np.uint64,
) -> None:
    half, key = np.uint64(32), seed
    # A round of all numbers before the next round: the compiler computes eight numbers at a time.
    for _ in range(_ROUNDS // 2):
        # The upper half of a product maps 32 random bits to [0, size) without a division. A difference below 0 wraps to
        # a large number, so that the smaller number is the remainder.
        key += _GAMMA
        for i in range(len(lefts)):
            left = lefts[i] + (((_mixed(rights[i] + key) >> half) * left_size) >> half)
            lefts[i] = min(left, left - left_size)
        key += _GAMMA
        for i in range(len(rights)):
            right = rights[i] + (((_mixed(lefts[i] + key) >> half) * right_size) >> half)
            rights[i] = min(right, right - right_size)


@compile_for("void(int64, int64, uint64, uint64, uint64, int64[::1])")
def _permute(
    first: int, count: int, left_size: np.uint64, right_size: np.uint64, seed: np.uint64, numbers: NDArray[np.int64]
) -> None:
    lefts, rights = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint64)
    for start in range(0, len(numbers), _BLOCK):
        size = min(_BLOCK, len(numbers) - start)
        left, right = np.uint64(first + start) // right_size, np.uint64(first + start) % right_size
        for i in range(size):
            lefts[i], rights[i] = left, right
            right += np.uint64(1)
            if right == right_size:
                left, right = left + np.uint64(1), np.uint64(0)
        _apply_rounds(lefts[:size], rights[:size], left_size, right_size, seed)
        for i in range(size):
            number = lefts[i] * right_size + rights[i]
            while number >= np.uint64(count):
                lefts[i], rights[i] = number // right_size, number % right_size
                _apply_rounds(lefts[i : i + 1], rights[i : i + 1], left_size, right_size, seed)
                number = lefts[i] * right_size + rights[i]
            numbers[start + i] = number
