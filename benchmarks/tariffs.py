"""The share of a swarm's energy that moves into cheap hours when members pause by price, and its cost.

    python benchmarks/tariffs.py [--seeds 20] [--members 12] [--json FILE] [--plot PNG]

A week in three time zones, with members in each. Prices are synthetic, one per half hour, in the
shape of day-ahead markets with much solar power: low at night, a peak in the morning and a higher
one in the evening, a minimum at noon, lower weekends, varying days, and occasionally a negative
price. Each member requests its zone's price every five minutes, through the program's own threshold,
hysteresis and memory of an old answer (`node/energy/threshold.py`); some requests fail, and once in
the week all fail for three hours. Its bounds are quantiles of the week before, which is what an
owner can know.

The same run compares: always active, pausing without hysteresis, and fixed hours of the night
(`node/util/schedule.py`). The duration of a round does not depend on the number of members, since all
compute in parallel, so the loss is in updates; a member that returns contributes none until it has
caught up. Cheap hours are those below the zone's median price, so half of the energy of a member
that is always active falls into them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from distro_node.node.energy.arithmetic import JOULES_PER_KWH
from distro_node.node.energy.threshold import PauseDecision, Threshold
from distro_node.node.util.schedule import parse_hours

ZONES = {"London": 0, "Chicago": -6, "Tokyo": 9}
"""Hours from UTC, without summer time."""

_SLOT_SECONDS = 1800
_SLOTS_A_DAY = 48
_DAYS = 7
_REQUEST_TIMEOUT_SECONDS = 300
_ASKS = _DAYS * 86_400 // _REQUEST_TIMEOUT_SECONDS
_OUTAGE_SECONDS = 3 * 3600
_NIGHT = "22:00-07:00"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Parameters that all strategies share."""

    members: int
    watts: float
    round_seconds: float
    return_seconds: float
    """From a member's return to its first update: it fetches what it missed."""
    pause_quantile: float
    resume_quantile: float
    unanswered: float
    """Fraction of the requests that fail."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A week of one strategy."""

    kwh: float
    cheap_share: float
    """Fraction of the energy that is used in hours below the zone's median price."""
    cost: float
    price: float
    """Mean price of a kWh."""
    updates: float
    cost_per_update: float
    """In thousandths of the currency unit."""
    returns: float
    """Returns per member in the week."""
    least: int
    """The lowest number of active members."""
    still_share: float
    """Fraction of the week in which no member trained and no round was made."""


Decide = Callable[[int, int, float | None], bool]
"""Whether a member is paused, given the seconds since the week began, the minute of its own day, and
the price that it received; None: no answer."""


def prices(rng: np.random.Generator, days: int) -> np.ndarray:
    """Return a zone's prices in local time: (days * 48,), in cents per kWh."""
    hour = (np.arange(days * _SLOTS_A_DAY) % _SLOTS_A_DAY) / 2
    day = np.arange(days * _SLOTS_A_DAY) // _SLOTS_A_DAY

    def hump(at: float, width: float) -> np.ndarray:
        return np.exp(-0.5 * ((hour - at) / width) ** 2)

    level = rng.normal(0, 2.5, days)[day]
    sun = rng.uniform(0.2, 1.3, days)[day]
    evening = rng.uniform(0.7, 1.4, days)[day]
    weekend = np.where(day % 7 >= 5, -3.0, 0.0)
    base = 22.0 + level + weekend - 4.0 * hump(3.0, 2.5)
    made = (
        base
        + 9.0 * hump(8.0, 1.3)
        + 15.0 * evening * hump(18.5, 1.8)
        - 13.0 * sun * hump(13.0, 2.2)
    )
    return made + rng.normal(0, 1.2, len(made))


def always(_: np.ndarray, __: Setting) -> Decide:
    """Never pause."""
    return lambda seconds, minute, price: False


def by_price(before: np.ndarray, setting: Setting, *, hysteresis: bool = True) -> Decide:
    """Return the program's own decision, with bounds from the week before."""
    pause = float(np.quantile(before, setting.pause_quantile))
    resume = float(np.quantile(before, setting.resume_quantile)) if hysteresis else pause
    gate = PauseDecision(Threshold(pause=pause, resume=resume))

    def decide(seconds: int, minute: int, price: float | None) -> bool:
        return gate.miss(seconds) if price is None else gate.hear(price, seconds)

    return decide


def by_price_alone(before: np.ndarray, setting: Setting) -> Decide:
    """The same, with one bound."""
    return by_price(before, setting, hysteresis=False)


def at_night(_: np.ndarray, __: Setting) -> Decide:
    """Return fixed hours of local time, as in `join --active`."""
    hours = parse_hours(_NIGHT)
    return lambda seconds, minute, price: not hours.contain(minute)


STRATEGIES: dict[str, Callable[[np.ndarray, Setting], Decide]] = {
    "always": always,
    "threshold": by_price_alone,
    "hysteresis": by_price,
    "night": at_night,
}


def at_work(decide: Decide, week: np.ndarray, answered: np.ndarray, offset: int) -> np.ndarray:
    """Return whether a member is active, for each request of the week in UTC: (asks,). `week`:
    prices of the zone in its own time, which is `offset` hours from UTC."""
    working = np.empty(_ASKS, dtype=bool)
    for ask in range(_ASKS):
        local = (ask * _REQUEST_TIMEOUT_SECONDS + offset * 3600) % (_DAYS * 86_400)
        price = float(week[local // _SLOT_SECONDS]) if answered[ask] else None
        working[ask] = not decide(ask * _REQUEST_TIMEOUT_SECONDS, local // 60 % 1440, price)
    return working


def simulate(seed: int, setting: Setting) -> tuple[dict[str, Outcome], dict[str, np.ndarray]]:
    """Return a week of every strategy with the same prices and failures; also each zone's prices,
    and the number of its active members, in UTC, by `prices ZONE` and `STRATEGY ZONE`."""
    rng = np.random.default_rng(seed)
    tariffs = {zone: prices(rng, 2 * _DAYS) for zone in ZONES}
    each = setting.members // len(ZONES)
    answered = {}
    for zone in ZONES:
        for member in range(each):
            heard = rng.random(_ASKS) >= setting.unanswered
            outage = int(rng.integers(0, _ASKS - _OUTAGE_SECONDS // _REQUEST_TIMEOUT_SECONDS))
            heard[outage : outage + _OUTAGE_SECONDS // _REQUEST_TIMEOUT_SECONDS] = False
            answered[zone, member] = heard
    outcomes, curves = {}, {}
    for name, make in STRATEGIES.items():
        joules = money = cheap = updates = 0.0
        returns, there = 0, np.zeros(_ASKS, dtype=int)
        for zone, offset in ZONES.items():
            before, week = (
                tariffs[zone][: _DAYS * _SLOTS_A_DAY],
                tariffs[zone][_DAYS * _SLOTS_A_DAY :],
            )
            local = (np.arange(_ASKS) * _REQUEST_TIMEOUT_SECONDS + offset * 3600) % (_DAYS * 86_400)
            paid = week[local // _SLOT_SECONDS]
            working = np.zeros(_ASKS, dtype=int)
            for member in range(each):
                works = at_work(make(before, setting), week, answered[zone, member], offset)
                back = works & ~np.concatenate(([True], works[:-1]))
                used = setting.watts * _REQUEST_TIMEOUT_SECONDS * works
                joules += used.sum()
                money += (used * paid).sum() / JOULES_PER_KWH / 100
                cheap += used[paid < np.median(week)].sum()
                seconds = (
                    works.sum() * _REQUEST_TIMEOUT_SECONDS - back.sum() * setting.return_seconds
                )
                updates += seconds / setting.round_seconds
                returns += int(back.sum())
                working += works
            curves[f"{name} {zone}"], curves[f"prices {zone}"] = working, paid
            there += working
        kwh = joules / JOULES_PER_KWH
        outcomes[name] = Outcome(
            kwh=kwh,
            cheap_share=cheap / joules,
            cost=money,
            price=100 * money / kwh,
            updates=updates,
            cost_per_update=1e3 * money / updates,
            returns=returns / setting.members,
            least=int(there.min()),
            still_share=float((there == 0).mean()),
        )
    return outcomes, curves


def plot(curves: dict[str, np.ndarray], file: Path) -> None:
    """Plot one week: prices above, active members below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    days = np.arange(_ASKS) * _REQUEST_TIMEOUT_SECONDS / 86_400
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(10, 5.5), sharex=True)
    for zone in ZONES:
        above.plot(days, curves[f"prices {zone}"], linewidth=1, label=zone)
    above.set_ylabel("cents a kWh")
    above.legend(loc="upper right", ncol=len(ZONES))
    below.stackplot(days, *(curves[f"hysteresis {zone}"] for zone in ZONES), labels=list(ZONES))
    below.set_ylabel("members at work")
    below.set_xlabel("days, UTC")
    below.set_xlim(0, _DAYS)
    figure.tight_layout()
    figure.savefig(file, dpi=90, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Pausing by price over a week in three time zones."
    )
    parser.add_argument("--seeds", type=int, default=20, help="weeks, each with prices of its own")
    parser.add_argument("--members", type=int, default=12, help="a third of them in each zone")
    parser.add_argument("--watts", type=float, default=300.0, help="of a member at work")
    parser.add_argument("--round-seconds", type=float, default=60.0)
    parser.add_argument("--return-seconds", type=float, default=180.0)
    parser.add_argument("--pause-quantile", type=float, default=0.6)
    parser.add_argument("--resume-quantile", type=float, default=0.5)
    parser.add_argument("--unanswered", type=float, default=0.02)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="PNG")
    options = parser.parse_args()
    if options.members < len(ZONES) or options.members % len(ZONES):
        parser.error(f"--members has to be a multiple of {len(ZONES)}")
    setting = Setting(**{name: getattr(options, name) for name in Setting.__dataclass_fields__})
    weeks = [simulate(seed, setting) for seed in range(options.seeds)]
    means: dict[str, dict[str, float]] = {}
    for name in STRATEGIES:
        each = [asdict(outcomes[name]) for outcomes, _ in weeks]
        means[name] = {key: statistics.fmean(week[key] for week in each) for key in each[0]}
        means[name]["least"] = min(week["least"] for week in each)
        for key in ("cheap_share", "price"):
            spread = statistics.stdev(week[key] for week in each) if len(each) > 1 else math.nan
            means[name][f"{key}_spread"] = spread
    usual = means["always"]
    print(
        f"{options.seeds} weeks, {setting.members} members in {', '.join(ZONES)}, {setting.watts:g} W"
    )
    print(
        f"{'strategy':12} {'kWh':>6} {'in cheap hours':>15} {'ct/kWh':>13} {'updates':>9} "
        f"{'of always':>9} {'m/update':>9} {'returns':>8} {'least':>6} {'nobody':>7}"
    )
    for name, mean in means.items():
        mean["updates_share"] = mean["updates"] / usual["updates"]
        mean["cost_per_update_share"] = mean["cost_per_update"] / usual["cost_per_update"]
        cells = (
            f"{name:12} {mean['kwh']:6.0f}",
            f"{100 * mean['cheap_share']:8.1f} ± {100 * mean['cheap_share_spread']:2.0f} %",
            f"{mean['price']:6.1f} ± {mean['price_spread']:3.1f}",
            f"{mean['updates']:9.0f} {100 * mean['updates_share']:7.1f} %",
            f"{mean['cost_per_update']:9.2f} {mean['returns']:8.1f}",
            f"{mean['least']:6.0f} {100 * mean['still_share']:5.1f} %",
        )
        print(*cells)
    if options.json:
        result = {
            "setting": asdict(setting),
            "seeds": options.seeds,
            "zones": ZONES,
            "means": means,
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.plot:
        plot(weeks[0][1], options.plot)


if __name__ == "__main__":
    main()
