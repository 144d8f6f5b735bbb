"""The options of `join` for a member's own data, and the checks of their values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ExitCode, UserError
from ..settings import PrivacySettings

_DEFAULT_CLIP = 1.0
_MOST_EPSILON, _MOST_CLIP = 1e6, 1e6

OwnFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        metavar="PATH",
        readable=False,
        help="Your own files or folders to train on, in a swarm whose data is private; they never leave "
        "this computer. May be repeated.",
    ),
]
Epsilon = Annotated[
    float | None,
    typer.Option(
        "--epsilon",
        metavar="E",
        help="With --data: clip gradients and add noise, so that everything that this node sends "
        "is (E, D)-differentially private for each sequence, and stop before the budget is exceeded.",
    ),
]
Delta = Annotated[
    float | None,
    typer.Option(
        "--delta",
        metavar="D",
        help="The D of --epsilon. [default: 0.1 divided by "
        "the number of your sequences, at most 0.00001]",
    ),
]
Clip = Annotated[
    float,
    typer.Option(
        "--clip",
        metavar="NORM",
        help="With --epsilon: the largest norm of the gradient of one sequence.",
    ),
]
Stateless = Annotated[
    bool,
    typer.Option(
        "--stateless/--stateful",
        help="Keep no momentum from one update to the next, for a node that stays for one round.",
    ),
]


def private_files(given: Sequence[Path] | None) -> tuple[Path, ...]:
    """Check `--data`. Raises `UserError` (`DATA_MISSING`)."""
    paths = tuple(path.expanduser().absolute() for path in given or ())
    for path in paths:
        if not path.exists():
            raise UserError(
                ExitCode.DATA_MISSING,
                f"there is no file or directory {path}",
                "name your own files or folders with --data",
            )
    return paths


def privacy_settings(
    epsilon: float | None, delta: float | None, clip: float
) -> PrivacySettings | None:
    """Check `--epsilon`, `--delta` and `--clip`. Raises `UserError` (`USAGE`)."""
    if epsilon is None:
        if delta is not None or clip != _DEFAULT_CLIP:
            raise UserError(
                ExitCode.USAGE,
                f"{'--delta' if delta is not None else '--clip'} has no effect without --epsilon",
                "give --epsilon as well, or neither",
            )
        return None
    for option, value, most in (
        ("--epsilon", epsilon, _MOST_EPSILON),
        ("--delta", delta, 0.5),
        ("--clip", clip, _MOST_CLIP),
    ):
        if value is not None and not (math.isfinite(value) and 0 < value <= most):
            raise UserError(
                ExitCode.USAGE,
                f"{option} {value:g} is out of range",
                f"give a number above 0, and at most {most:g}",
            )
    return PrivacySettings(epsilon=epsilon, delta=delta, clip=clip)
