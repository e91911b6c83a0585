"""Base class for custom transforms of observations."""

from __future__ import annotations

from datasets_rl.transforms.base import Keys, Transform


class ObservationTransform(Transform):
    """Base class of transforms of observations: `in_keys` are ``["observation", "pixels"]`` by default.

    The arguments are documented in `Transform`.
    """

    def __init__(
        self,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
    ) -> None:
        super().__init__(["observation", "pixels"] if in_keys is None else in_keys, out_keys, in_keys_inv, out_keys_inv)
