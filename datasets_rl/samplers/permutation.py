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


@compile_for("void(int64, int64, uint64, uint64, uint64, int64[::1])")
def _permute(
    first: int, count: int, left_size: np.uint64, right_size: np.uint64, seed: np.uint64, numbers: NDArray[np.int64]
) -> None:
    half = np.uint64(32)
    for i in range(len(numbers)):
        number = np.uint64(first + i)
        while True:
            left, right, key = number // right_size, number % right_size, seed
            for _ in range(_ROUNDS // 2):
                # The upper half of a product maps 32 random bits to [0, size) without a division.
                key += _GAMMA
                left += ((_mixed(right + key) >> half) * left_size) >> half
                left -= left_size if left >= left_size else np.uint64(0)
                key += _GAMMA
                right += ((_mixed(left + key) >> half) * right_size) >> half
                right -= right_size if right >= right_size else np.uint64(0)
            number = left * right_size + right
            if number < np.uint64(count):
                break
        numbers[i] = number
