"""The integer cosine basis is the same on every platform, and float32 holds its results exactly."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from distro_node.protocol.codec.basis import (
    MAX_SIDE,
    exact_in_float32,
    integer_basis,
    orthonormal_basis,
    scaled_basis,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "update_basis_sha256.txt"
SIDES = range(1, MAX_SIDE + 1)


def test_golden_hash_of_all_matrices() -> None:
    digest = hashlib.sha256()
    for side in SIDES:
        digest.update(integer_basis(side).tobytes())
    assert digest.hexdigest() == GOLDEN.read_text().strip()


def test_no_entry_is_near_a_rounding_tie_but_the_exact_ones() -> None:
    """So no error of a platform's cosine (about 1e-14) can round an entry another way."""
    ties = set()
    for side in SIDES:
        fraction = np.abs(scaled_basis(side)) % 1.0
        near = np.argwhere(np.abs(fraction - 0.5) < 1e-6)
        ties.update((side, int(frequency)) for frequency, _ in near)
        # Entries that are near are exact ties, and all of them were rounded away from zero.
        for frequency, place in near:
            value = scaled_basis(side)[frequency, place]
            assert abs(abs(value) - 63.5) < 1e-12
            assert abs(integer_basis(side)[frequency, place]) == 64
    # 127/2 needs an angle of 60 degrees, which only these sides have.
    assert {side for side, _ in ties} == {side for side in SIDES if side % 3 == 0}


@pytest.mark.parametrize("error", [-1e-12, 1e-12])
def test_an_inexact_cosine_changes_nothing(error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [integer_basis(side).copy() for side in SIDES]
    exact = scaled_basis
    monkeypatch.setattr(
        "distro_node.protocol.codec.basis.scaled_basis", lambda side: exact(side) * (1 + error)
    )
    for side, basis in zip(SIDES, expected, strict=True):
        np.testing.assert_array_equal(integer_basis.__wrapped__(side), basis)


def test_the_unrounded_matrix_is_orthonormal() -> None:
    for side in SIDES:
        matrix = orthonormal_basis(side)
        np.testing.assert_allclose(matrix @ matrix.T, np.eye(side), atol=1e-12)


def test_the_bound_of_float32() -> None:
    assert exact_in_float32(130, 8, 64, 64)
    assert not exact_in_float32(131, 8, 64, 64)
    assert exact_in_float32(4096, 4095, 1, 1)
    assert not exact_in_float32(4096, 4095, 1, 64)


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (2, 3), (1, 5), (43, 7), (1, 1)])
def test_no_sum_exceeds_the_bound(rows: int, columns: int) -> None:
    """Every sign at the worst position: the largest sum of magnitudes is what the bound allows for."""
    left = np.abs(integer_basis(rows).astype(np.int64)) if rows > 1 else np.ones((1, 1), np.int64)
    right = np.abs(integer_basis(columns).astype(np.int64))
    right = right if columns > 1 else np.ones((1, 1), np.int64)
    worst = int(left.max() * right.max())
    members = (2**24 - 1) // worst
    assert exact_in_float32(members, 1, rows, columns)
    assert not exact_in_float32(members + 1, 1, rows, columns)


def test_side_out_of_range() -> None:
    for side in (0, 65):
        with pytest.raises(ValueError, match="side"):
            integer_basis(side)


def test_nobody_can_change_the_shared_matrix() -> None:
    with pytest.raises(ValueError, match="read-only"):
        integer_basis(8)[0, 0] = 1
