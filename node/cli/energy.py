"""The options of `join` for energy: price, power limit and reasons to pause."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from ..energy.numbers import check_path
from ..energy.threshold import threshold_of
from ..errors import ExitCode, UserError
from ..settings import EnergySettings, PauseWhen

_MAX_CURRENCY = 8
_MAX_ASK = 2048
SHORTEST_SECONDS = 10.0

Price = Annotated[
    float | None,
    typer.Option("--price", metavar="PRICE", min=0.0, max=1e6, help="The price of a kWh."),
]
Currency = Annotated[
    str | None,
    typer.Option("--currency", metavar="WORD", help="The price's currency, such as EUR or ct."),
]
PowerLimit = Annotated[
    float | None,
    typer.Option(
        "--power-limit",
        metavar="WATTS",
        min=1.0,
        max=10_000.0,
        help="Limit the power of each GPU while this node works, if its driver allows it "
        "(NVIDIA, mostly as root); the GPU's own limit is restored in pauses and at the end.",
    ),
]
PauseWhenOption = Annotated[
    str | None,
    typer.Option(
        "--pause-when",
        metavar="COMMAND|URL",
        help="Pause by a number that this command prints or this URL returns, such as a "
        "price; without --pause-above or --pause-below, pause while the command exits with 0 "
        "rather than 1.",
    ),
]
PauseField = Annotated[
    str | None,
    typer.Option(
        "--pause-field",
        metavar="PATH",
        help="Where in JSON the number is, such as data.0.intensity.actual; `now` instead "
        "of an element's number selects the element for the current time.",
    ),
]
PauseAbove = Annotated[
    float | None,
    typer.Option("--pause-above", metavar="NUMBER", help="Pause while the number is above this."),
]
ResumeBelow = Annotated[
    float | None,
    typer.Option(
        "--resume-below",
        metavar="NUMBER",
        help="Resume only once the number is below this. [default: as --pause-above]",
    ),
]
PauseBelow = Annotated[
    float | None,
    typer.Option(
        "--pause-below",
        metavar="NUMBER",
        help="Pause while the number is below this, such as the power of a solar roof.",
    ),
]
ResumeAbove = Annotated[
    float | None,
    typer.Option(
        "--resume-above",
        metavar="NUMBER",
        help="Resume only once the number is above this. [default: as --pause-below]",
    ),
]
PauseEvery = Annotated[
    float,
    typer.Option(
        "--pause-every",
        metavar="SECONDS",
        min=SHORTEST_SECONDS,
        max=86_400.0,
        help="Interval at which --pause-when is queried.",
    ),
]
Polite = Annotated[
    bool,
    typer.Option(
        "--polite/--no-polite",
        help="Pause at once when another program uses the GPU or a "
        "person uses the computer, until both have been idle for a while.",
    ),
]


def energy_settings(
    *,
    price: float | None,
    currency: str | None,
    power_limit: float | None,
    pause_when: str | None,
    pause_field: str | None,
    above: tuple[float | None, float | None],
    below: tuple[float | None, float | None],
    every: float,
    polite: bool,
) -> EnergySettings:
    """Check the options; `above` and `below` are each the bounds for pausing and resuming. Raises
    `UserError` (`USAGE`)."""
    for name, number in (
        ("--price", price),
        ("--power-limit", power_limit),
        ("--pause-every", every),
    ):
        if number is not None and not math.isfinite(number):
            raise _usage(f"{name} {number} is not a number", "give a number")
    if currency is not None and (price is None or not _is_word(currency)):
        raise _usage(
            f"--currency {currency!r} needs --price"
            if price is None
            else f"{currency!r} is not a currency",
            f"give --price as well, and a word of at most {_MAX_CURRENCY} characters, such as EUR",
        )
    return EnergySettings(
        price=price,
        currency=currency,
        power_limit=power_limit,
        pause_when=_pause_when(pause_when, pause_field, above, below, every),
        polite=polite,
    )


def _pause_when(
    ask: str | None,
    field: str | None,
    above: tuple[float | None, float | None],
    below: tuple[float | None, float | None],
    every: float,
) -> PauseWhen | None:
    bounds = (*above, *below)
    if ask is None:
        if field is not None or any(bound is not None for bound in bounds):
            raise _usage("the bounds and --pause-field need --pause-when", "give --pause-when")
        return None
    if not ask.strip() or len(ask) > _MAX_ASK or "\0" in ask:
        raise _usage("--pause-when is empty or too long", "give a command, or a URL")
    high = above[0] is not None
    pause, resume = above if high else below
    stray = (
        (below if high else above)[1]
        if pause is not None
        else next((bound for bound in bounds if bound is not None), None)
    )
    if (high and below[0] is not None) or stray is not None:
        raise _usage(
            "the bounds of --pause-when do not go together",
            "give --pause-above with --resume-below, or --pause-below with --resume-above",
        )
    settings = PauseWhen(
        ask=ask, field=field, pause=pause, resume=resume, high=high or pause is None, every=every
    )
    if pause is None and (settings.is_url or field is not None):
        raise _usage(
            "--pause-when queries a number, but no bound for it is given",
            "give --pause-above or --pause-below",
        )
    try:
        threshold_of(settings)
        if field is not None:
            check_path(field)
    except ValueError as error:
        raise _usage(
            f"--pause-when: {error}",
            "bounds are finite, --resume-below is at most --pause-above (and --resume-above at least "
            "--pause-below), and a field is such as data.0.intensity.actual",
        ) from None
    return settings


def _is_word(text: str) -> bool:
    return text.isprintable() and " " not in text and 0 < len(text) <= _MAX_CURRENCY


def _usage(problem: str, remedy: str) -> UserError:
    return UserError(ExitCode.USAGE, problem, remedy)
