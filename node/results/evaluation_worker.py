"""The process that measures a model on lm-eval's tasks: one request in a file, one answer in another.

The process is separate because lm-eval imports torch and many other packages, which the node's own
process never loads. Request and answer are JSON; the answer has the scores or the failure.
"""

from __future__ import annotations

import argparse
import json
import math
import numbers
import os
import re
import socket
import sys
import traceback
from importlib import import_module, metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..util.first_line import first_line
from ..util.operating_system import lower_priority
from ..util.standard_streams import open_standard_streams

_CONNECT_SECONDS = 5.0
_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
# Exceptions of the hub, of datasets and of the HTTP libraries which mean that something cannot be
# fetched from here.
_OFFLINE = (
    *("OfflineModeIsEnabled", "LocalEntryNotFoundError", "ConnectError", "ConnectTimeout"),
    *("ConnectionError", "OfflineError", "HfHubHTTPError", "DatasetNotFoundError", "ProxyError"),
)
_TASK_NAME = re.compile(r"^task:\s*[\"']?([\w.-]{1,128})[\"']?\s*(?:#.*)?$", re.MULTILINE)


def main() -> None:
    """Read the request, measure, write the answer. The exit code is 0 whenever there is an answer."""
    # What the libraries print must not end them when nobody reads it any more.
    open_standard_streams()
    parser = argparse.ArgumentParser()
    parser.add_argument("--request", type=Path, required=True)
    parser.add_argument("--answer", type=Path, required=True)
    arguments = parser.parse_args()
    request = json.loads(arguments.request.read_text())
    lower_priority(request["nice"])
    # lm-eval's output is for people; standard output belongs to the command.
    os.dup2(2, 1)
    try:
        answer = measure(request)
    except Exception as error:
        answer = {"error": failure(error), "message": first_line(error, 300)}
        if answer["error"] == "failed":
            traceback.print_exc()
    arguments.answer.write_text(json.dumps(answer))


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of one model. Raises whatever the libraries raise."""
    files = [Path(name) for name in request["tasks"] if _is_file(name)]
    task_names = [name for name in request["tasks"] if not _is_file(name)]
    if not task_names or not _hub_answers():
        # Set before the libraries are loaded, which read this at import. Their caches still work.
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    try:
        # Imported by name, because type checkers also run where lm-eval is not installed.
        evaluator = import_module("lm_eval.evaluator")
        task_manager = import_module("lm_eval.tasks").TaskManager
        models = import_module("lm_eval.models.huggingface")
        transformers = import_module("transformers")
    except ImportError as error:
        raise _Missing(str(error)) from None
    tasks = [*task_names, *(_task_in(path) for path in files)]
    manager = task_manager(
        include_path=sorted({str(path.parent) for path in files}) or None,
        include_defaults=bool(task_names),
    )
    unknown = [name for name in tasks if name not in manager.all_tasks]
    if unknown:
        raise _Unknown(", ".join(unknown))
    results = evaluator.simple_evaluate(
        model=_model(models.HFLM, transformers.PreTrainedTokenizerFast, request),
        tasks=tasks,
        num_fewshot=request["fewshot"],
        apply_chat_template=request["chat"],
        limit=request["limit"],
        task_manager=manager,
        log_samples=False,
        random_seed=0,
        numpy_random_seed=request["seed"],
        torch_random_seed=request["seed"],
        fewshot_random_seed=request["seed"],
    )
    assert results is not None  # only ranks other than the first get None
    return {"tasks": scores(results), "lm_eval": metadata.version("lm-eval")}


def scores(results: Any) -> list[dict[str, Any]]:
    """Return every measured number in lm-eval's results, a row for each task, metric and filter. A
    filter other than `none` follows the metric's name after a comma."""
    rows = []
    for task, measured in results["results"].items():
        counted = results.get("n-samples", {}).get(task, {}).get("effective")
        for key, value in measured.items():
            metric, _, filtered_by = key.partition(",")
            # Newer releases list the number of questions among the scores.
            if metric.endswith("_stderr") or metric.startswith("sample_"):
                continue
            if not _is_finite(value):
                continue
            error = measured.get(key.replace(metric, f"{metric}_stderr", 1))
            # A task can have one metric several times, with other filters of the model's answers.
            filtered = filtered_by not in ("", "none")
            rows.append(
                {
                    "task": task,
                    "metric": key if filtered else metric,
                    "value": float(value),
                    "error": float(error) if _is_finite(error) else None,
                    "samples": counted if type(counted) is int else None,
                }
            )
    return rows


def _is_finite(value: Any) -> bool:
    """Return whether a result is a finite number, such as lm-eval's and NumPy's."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return number and math.isfinite(value)


def failure(error: BaseException) -> str:
    """Return the kind of a failure: `missing`, `task`, `offline` or `failed`."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, _Missing):
            return "missing"
        if isinstance(current, _Unknown):
            return "task"
        names = {cls.__name__ for cls in type(current).__mro__}
        if names & set(_OFFLINE):
            return "offline"
        current = current.__cause__ or current.__context__
    return "failed"


class _Missing(Exception):
    """lm-eval, or a package that it needs, is not installed."""


class _Unknown(Exception):
    """lm-eval has no task of this name."""


def _is_file(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def _task_in(path: Path) -> str:
    # Not parsed as YAML: these files can name Python code to run, and only lm-eval may decide to run it.
    found = _TASK_NAME.search(path.read_text(encoding="utf-8"))
    if found is None:
        raise _Unknown(f"{path} (it has no line 'task: NAME')")
    return found.group(1)


def _model(kind: Any, tokenizer: Any, request: dict[str, Any]) -> Any:
    """Return the model for lm-eval; its texts start as documents do in training. `tokenizer` is a class
    that follows the tokenizer file, as AutoTokenizer does not for some model families."""

    class StartedModel(kind):
        def loglikelihood_rolling(self, *given: Any, **named: Any) -> Any:
            # This method puts a start token before a text; a second one would be scored as its text.
            added, self.add_bos_token = self.add_bos_token, False
            try:
                return super().loglikelihood_rolling(*given, **named)
            finally:
                self.add_bos_token = added

    return StartedModel(
        pretrained=request["model"],
        tokenizer=tokenizer.from_pretrained(request["model"]),
        dtype="float32",
        trust_remote_code=False,
        batch_size=request["batch_size"],
        device=request["device"],
        **beginning(Path(request["model"]), request["before"], chat=request["chat"]),
    )


def beginning(model: Path, before: int | None, *, chat: bool) -> dict[str, Any]:
    """Return lm-eval's options on how a text starts. `before` is the token that precedes a document in
    training: the start token, else the end token of the previous document. If there is neither, as with
    bytes, zero is used, which occurs in no text. With `chat` the template writes the start token."""
    table = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
    options: dict[str, Any] = {"add_bos_token": table["add_bos_token"] and not chat}
    if before is None and (table.get("bos_token") or table.get("eos_token")):
        return options
    return options | {"prefix_token_id": before or 0}


def _hub_answers() -> bool:
    if any(os.environ.get(name) for name in _PROXIES):
        return True
    hub = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    port = hub.port or (80 if hub.scheme == "http" else 443)
    try:
        socket.create_connection((hub.hostname or "", port), _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
    # Threads of the libraries may hang in an orderly exit; nothing is left to save.
    sys.stderr.flush()
    os._exit(0)
