"""Evaluation of a model state on lm-eval's tasks, and storage of the scores with that state.

The state is reconstructed and written to a temporary folder. Another process (`evaluation_worker`)
measures it there, and the scores are added to the swarm's history under its round and record id.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import trio

from ...protocol.wire.manifest import DataSpec, SwarmId
from ...protocol.wire.structure import to_plain
from ...protocol.wire.swarm_id import swarm_text
from ..control.command_socket import ask
from ..errors import ExitCode, UserError
from ..settings.tree import NEWEST, StateSelector
from ..storage.data_dir import DataDir
from ..telemetry.history import write
from ..telemetry.task_scores import HELDOUT, TaskScores, heldout_accuracy, read_scores
from ..training.errors import TrainerFailed
from ..training.task_names import (
    CLASSIFICATION,
    DIFFUSION,
    DPO,
    GRPO,
    MASKED_LM,
    SFT,
    WITH_ACCURACY,
)
from ..training.tokenizer_settings import CHAT_TEMPLATE_NAME
from ..util.progress import ShowProgress, show_nothing
from .export import write_model
from .saved_state import StoredSwarm, read_swarm, reconstructed

GPT4ALL = (*("arc_challenge", "arc_easy", "hellaswag", "openbookqa", "piqa", "winogrande"),)
PRESETS: dict[str, tuple[str, ...]] = {"gpt4all": GPT4ALL}
"""Names for sets of tasks, all without few-shot examples."""

MAX_TASKS = 64
MAX_SAMPLES = 1 << 31
"""More samples than any held-out shard has: all of them."""
_NICE = 10
_REPORT_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings:
    """The arguments of `evaluate_swarm`."""

    swarm: SwarmId
    data_dir: Path
    tasks: tuple[str, ...]
    """Names of lm-eval's tasks, presets, and files of tasks (.yaml)."""
    selector: StateSelector = NEWEST
    limit: int | None = None
    """Number of questions of each task; None: all."""
    fewshot: int | None = None
    """Examples before each question; None: the task's default, or 0 if only presets are given."""
    chat: bool | None = None
    """Whether questions go through the chat template; None: if the swarm learns from conversations."""
    batch_size: int = 1
    """Number of lm-eval's requests that the model computes at a time."""
    device: str = "cpu"
    threads: int | None = None
    seed: int = 0


async def evaluate_swarm(
    settings: EvaluateSettings,
    stages: Callable[[], AbstractContextManager[ShowProgress]] = lambda: nullcontext(show_nothing),
) -> TaskScores:
    """Measure a state, add the scores to the history, and send them to the node if it runs.

    Raises `UserError`: `EVALUATION` for tasks that cannot be measured, `HUB` for tasks that need the
    Hugging Face hub if it cannot be reached, and what `reconstructed` raises.
    """
    tasks = chosen_tasks(settings.tasks)
    data = DataDir(settings.data_dir)
    stored = await read_swarm(data, settings.swarm)
    if stored.manifest.task in WITH_ACCURACY and tasks == (HELDOUT,):
        return await _score_heldout(data, stored, settings)
    if stored.manifest.task in CLASSIFICATION:
        raise _not_measured(
            "lm-eval measures models that continue a text, and this swarm's model names classes",
            f"give --tasks {HELDOUT} for its accuracy on the held-out samples",
        )
    other_use = {MASKED_LM: "fills gaps", DIFFUSION: "draws images"}.get(stored.manifest.task)
    if other_use is not None:
        raise _not_measured(
            f"lm-eval measures models that continue a text, and this swarm's model {other_use}",
            "see its held-out loss with `distro-node status`, or export it and measure it elsewhere",
        )
    if find_spec("lm_eval") is None:
        # Known before the state is reconstructed, which can take minutes.
        raise _evaluation_error("missing", "there is no module lm_eval")
    preset = all(each in PRESETS for each in settings.tasks)
    fewshot = 0 if preset and settings.fewshot is None else settings.fewshot
    with tempfile.TemporaryDirectory(prefix="distro-evaluate-") as folder:
        model = Path(folder) / "model"
        model.mkdir()
        # The display ends before lm-eval prints.
        with stages() as progress:
            async with reconstructed(
                stored,
                settings.selector,
                writable=(model,),
                threads=settings.threads,
                progress=progress,
            ) as state:
                await write_model(state, model, merged=stored.manifest.adapter is not None)
            chat = asks_by_template(settings.chat, stored.manifest.task, model)
            state_facts = {
                "swarm": swarm_text(stored.manifest.swarm),
                "round": state.round,
                "record": state.record.hex(),
                "fingerprint": f"{state.fingerprint:016x}",
            }
        # The trainer's memory is free again, so the model is not in memory twice.
        request = {
            "model": str(model),
            "tasks": list(tasks),
            "limit": settings.limit,
            "fewshot": fewshot,
            "chat": chat,
            "before": _token_before_document(stored.manifest.data),
            "batch_size": settings.batch_size,
            "device": settings.device,
            "seed": settings.seed,
            "nice": _NICE,
        }
        answer = await _run_evaluation(request, Path(folder), settings.threads)
    options = {"time": time.time(), "fewshot": fewshot, "limit": settings.limit, "chat": chat}
    facts = state_facts | options | answer
    scores = read_scores(facts)
    if scores is None or not scores.tasks:
        raise _not_measured("lm-eval returned no numeric score", "see its output above")
    await trio.to_thread.run_sync(_add_to_history, stored.directory.history, scores)
    await trio.to_thread.run_sync(_report_to_node, data, scores)
    return scores


async def _score_heldout(
    data: DataDir, stored: StoredSwarm, settings: EvaluateSettings
) -> TaskScores:
    """Measure the accuracy of a state on the held-out samples, and keep and send it as other scores."""
    async with reconstructed(
        stored, settings.selector, threads=settings.threads, device=settings.device
    ) as state:
        try:
            found = await state.trainer.accuracy(settings.limit or MAX_SAMPLES)
        except TrainerFailed as failure:
            if failure.kind not in ("missing_data", "bad_data"):
                raise
            raise _not_measured(
                str(failure), "start the node, which fetches the held-out samples, and try again"
            ) from None
        if found is None:
            raise _not_measured("the trainer returned no accuracy", "report this as a fault")
        scores = heldout_accuracy(
            swarm_text(stored.manifest.swarm),
            state.round,
            state.record.hex(),
            state.fingerprint,
            *found,
        )
        scores = replace(scores, limit=settings.limit)
    await trio.to_thread.run_sync(_add_to_history, stored.directory.history, scores)
    await trio.to_thread.run_sync(_report_to_node, data, scores)
    return scores


def _token_before_document(data: DataSpec) -> int | None:
    """Return the token that precedes a document in training; None if unknown."""
    return data.end_token if data.start_token is None else data.start_token


def chosen_tasks(given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the selected tasks without duplicates; files by their absolute path.

    Raises `UserError` (`EVALUATION`) if a file does not exist, or for no task or too many.
    """
    tasks: list[str] = []
    for each in given:
        if each.endswith((".yaml", ".yml")):
            path = Path(each).expanduser().absolute()
            if not path.is_file():
                raise _not_measured(f"there is no task file {path}", "fix the path")
            tasks.append(str(path))
        else:
            tasks += PRESETS.get(each, (each,))
    if not 1 <= len(tasks) <= MAX_TASKS:
        raise _not_measured(
            f"{len(tasks)} tasks were given, and 1 to {MAX_TASKS} can be measured at once",
            "name fewer",
        )
    return tuple(dict.fromkeys(tasks))


def asks_by_template(wanted: bool | None, task: str, model: Path) -> bool:
    """Return whether questions are put as a user's messages, which the assistant answers. Raises
    `UserError` (`EVALUATION`) if that is wanted and the model has no chat template."""
    has = (model / CHAT_TEMPLATE_NAME).exists()
    if wanted and not has:
        raise _not_measured(
            "this model has no chat template, so questions cannot be put as chat messages",
            "leave --chat out: the model then continues the question as text",
        )
    return has and task in (SFT, DPO, GRPO) if wanted is None else wanted


async def _run_evaluation(
    request: dict[str, Any], folder: Path, threads: int | None
) -> dict[str, Any]:
    request_path, answer_path = folder / "request.json", folder / "answer.json"
    request_path.write_text(json.dumps(request))
    environment = dict(os.environ) | {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    ended = await trio.run_process(
        [
            *(sys.executable, "-P", "-m", "distro_node.node.results.evaluation_worker"),
            *(f"--request={request_path}", f"--answer={answer_path}"),
        ],
        stdin=subprocess.DEVNULL,
        check=False,
        env=environment,
    )
    try:
        answer = json.loads(answer_path.read_bytes())
    except (OSError, ValueError):
        raise _not_measured(
            f"the evaluation process ended with exit code {ended.returncode}",
            "see its output above; it may have run out of memory",
        ) from None
    if "error" in answer:
        raise _evaluation_error(answer["error"], answer["message"])
    return answer


def _evaluation_error(kind: str, message: str) -> UserError:
    if kind == "missing":
        return _not_measured(
            f"lm-eval is not installed: {message}",
            "install it with: pip install 'distro-node[eval]'",
        )
    if kind == "task":
        return _not_measured(
            f"lm-eval does not know the task: {message}", "`lm-eval ls tasks` lists those it has"
        )
    if kind == "offline":
        return UserError(
            ExitCode.HUB,
            f"these tasks need the Hugging Face hub, which cannot be reached from here: {message}",
            "try again with an internet connection, or name task files on this disk",
        )
    return _not_measured(f"lm-eval failed: {message}", "see its output above")


def _add_to_history(history: Path, scores: TaskScores) -> None:
    """Append the scores; a failure is only logged, because they are also returned."""
    line = {"round": scores.round, "time": scores.time, "scores": to_plain(scores, named=True)}
    write(history, line)


def _report_to_node(data: DataDir, scores: TaskScores) -> None:
    try:
        ask(data.socket, "scored", _REPORT_SECONDS, scores=to_plain(scores, named=True))
    except UserError:
        # No node runs here, or one of another swarm or version: the history has the scores.
        return


def _not_measured(problem: str, remedy: str) -> UserError:
    return UserError(ExitCode.EVALUATION, problem, remedy)
