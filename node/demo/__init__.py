"""The demo: a whole swarm on one machine, with a killed node, a newcomer, and finally no bootstrap peer.

Every node is a process of its own, started as any user would start it. The demo checks what it promises
to show (`outcome`), and reports the result with its exit code; however it ends, none of its processes is
left running.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import ExitCode
from ..telemetry.plots import plot_losses
from ..util.sanitize import harmless
from .director import DemoFailed, Director
from .folder import DemoFolder, claim
from .outcome import DemoPromise, DemoRun, check, reduction, summarise
from .plan import MIN_NODES, MIN_ROUNDS, DemoPlan, collect_text, manifest_text, write_tokenizer
from .processes import Processes, interrupted_by_signals
from .view import View, print_results

__all__ = ["MIN_NODES", "MIN_ROUNDS", "run_demo"]


def run_demo(nodes: int, rounds: int, out: Path, victim: int | None = None) -> int:
    """Run the demo and leave its results in `out`; return the exit code.

    `victim` is the number of the node to kill, by default that of the last node (the founder's is 1).
    The exit code is `DEMO_FAILED` if a promise was broken or the demo could not go on. Raises
    `UserError` if the demo cannot start, and `KeyboardInterrupt` on Ctrl-C, SIGTERM and SIGHUP, after it
    has ended every process.
    """
    begun = time.monotonic()
    plan = DemoPlan(nodes=nodes, rounds=rounds, victim=nodes if victim is None else victim)
    with claim(out.absolute()) as folder:
        collect_text(folder.text)
        write_tokenizer(folder.text, folder.tokenizer)
        folder.manifest.write_text(manifest_text(plan), encoding="utf-8")
        failure: DemoFailed | None = None
        try:
            with interrupted_by_signals(), Processes(folder.logs, folder.config) as processes:
                with View() as view:
                    director = Director(plan, folder, processes, view, begun)
                    try:
                        director.run()
                    except DemoFailed as error:
                        failure = error
                # The result is taken before the remaining processes are ended, so that it names those
                # still running.
                run = director.result()
        except KeyboardInterrupt:
            _print(f"\nstopped; all processes have ended, their logs are in {folder.logs}")
            raise
        return _report(run, folder, failure)


def _report(run: DemoRun, folder: DemoFolder, failure: DemoFailed | None) -> int:
    summary, checks = summarise(run), check(run)
    passed = failure is None and all(promise.passed for promise in checks)
    full = summary | {
        "checks": [asdict(promise) for promise in checks],
        "sample": run.sample,
        "failure": str(failure) if failure is not None else None,
        "passed": passed,
    }
    folder.summary.write_text(_json_text(full), encoding="utf-8")
    _plot(run, folder)
    files = {"plot": folder.plot, "figures": folder.summary, "logs": folder.logs}
    print_results(summary, checks, files, run.sample)
    if failure is not None:
        _print(f"error: {failure}; the last lines of {failure.log}:")
        for line in failure.last_lines:
            _print(f"  {line}")
    elif not passed:
        _print(f"error: {_failed(checks)}; the logs are in {folder.logs}")
    return ExitCode.OK if passed else ExitCode.DEMO_FAILED


def _plot(run: DemoRun, folder: DemoFolder) -> None:
    labels = {
        "killed": f"node-{run.plan.victim} is killed (SIGKILL)",
        "joined": f"node-{run.plan.newcomer} joins with a link",
        "bootstrap_killed": "the bootstrap peer is killed",
    }
    factor = reduction(summarise(run))
    title = f"{run.plan.nodes} nodes, {run.parameters:,} parameters, no coordinator"
    if factor is not None:
        title += f": {factor:,.0f} × fewer bytes than a dense all-reduce"
    plot_losses(
        folder.plot,
        training=run.curve("loss"),
        heldout=run.curve("heldout"),
        events=[(event.round, labels[event.kind]) for event in run.events if event.kind in labels],
        title=title,
    )


def _json_text(facts: Mapping[str, Any]) -> str:
    """Return JSON with a line for each key, and for each object in a list of objects."""
    lines = []
    for key, value in facts.items():
        text = json.dumps(value)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n".join(f"    {json.dumps(row)}" for row in value)
            text = f"[\n{rows}\n  ]"
        lines.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _failed(checks: list[DemoPromise]) -> str:
    return "failed: " + "; ".join(promise.what for promise in checks if not promise.passed)


def _print(text: str) -> None:
    print(harmless(text), file=sys.stderr, flush=True)
