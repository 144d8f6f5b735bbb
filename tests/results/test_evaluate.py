"""Evaluation on lm-eval's tasks: without the internet, and bound to the state that was measured."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distro_node.crypto.identity import PeerId
from distro_node.node.cli.main import main
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.results import evaluate as evaluation
from distro_node.node.results import evaluation_worker
from distro_node.node.results.evaluate import (
    GPT4ALL,
    MAX_TASKS,
    _add_to_history,
    asks_by_template,
    chosen_tasks,
)
from distro_node.node.results.evaluation_worker import failure, scores
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.telemetry.history import last_scores
from distro_node.node.telemetry.task_scores import TaskScore, TaskScores, read_scores
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.node.trainer.models.export import export
from distro_node.node.training.task_names import DPO, SFT
from distro_node.node.training.tokenizer_settings import CHAT_TEMPLATE_NAME
from distro_node.protocol.wire.structure import to_plain
from distro_node.protocol.wire.swarm_id import swarm_text
from results.support import Made, make_swarm
from scraping import sample, told_by
from statuses import SCORES
from trainer.test_chat import CHATML
from trainer.test_task_results import END, talking
from transformers import PreTrainedTokenizerFast

pytestmark = pytest.mark.usefixtures("logging_as_it_was")

needs_lm_eval = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="lm-eval (the extra eval) is not installed"
)
START = 256
QUESTIONS = [("swarm ", ["update", "qqqqqq"], 0), ("round ", ["zzzzzz", "agree "], 1)] * 3
TASK = """
task: words   # what comes next
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{beginning}}}}"
doc_to_choice: "{{{{endings}}}}"
doc_to_target: right
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
  - metric: acc_norm
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_swarm(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """Write a local task, in two files."""
    rows = [{"beginning": b, "endings": e, "right": r} for b, e, r in QUESTIONS]
    data = tmp_path / "words.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    path = tmp_path / "words.yaml"
    path.write_text(TASK.format(data=data))
    return path


def evaluate(made: Made, *options: str) -> int:
    arguments = ["evaluate", "--data-dir", str(made.data.root), "--threads", "1", *options]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


@needs_lm_eval
def test_a_task_of_ones_own_needs_no_internet_and_is_bound_to_the_record(
    finished: Made, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    # Any request to it is refused at once.
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    assert evaluate(finished, "--tasks", str(task), "--json", "--round", "4") == 0
    told = read_scores(json.loads(capfd.readouterr().out))
    assert told is not None
    assert told.swarm == swarm_text(finished.manifest.swarm)
    assert told.round == 4
    assert told.record == finished.ledger[4].record.id.hex()
    assert told.fingerprint == f"{finished.fingerprints[4]:016x}"
    assert {score.metric for score in told.tasks} == {"acc", "acc_norm"}
    assert {(score.task, score.samples) for score in told.tasks} == {("words", len(QUESTIONS))}
    assert all(0 <= score.value <= 1 for score in told.tasks)

    lines = [json.loads(line) for line in finished.history.read_text().splitlines()]
    assert [line["round"] for line in lines] == [4]
    assert read_scores(lines[0]["scores"]) == told
    # The next node that is started shows them.
    telemetry = Telemetry(PeerId(bytes(32)))
    telemetry.keep_history(finished.history)
    assert telemetry.scores == told


@needs_lm_eval
def test_tasks_of_the_hub_without_the_internet_are_one_line(
    finished: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert evaluate(finished, "--tasks", "arc_easy", "--limit", "2") == ExitCode.HUB
    err = capfd.readouterr().err
    assert "error: these tasks need the Hugging Face hub" in err
    assert "Traceback" not in err


def test_a_missing_package_is_named_before_the_model_is_loaded(
    finished: Made, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluation, "find_spec", lambda name: None)
    monkeypatch.setattr(evaluation, "reconstructed", None)
    assert evaluate(finished, "--tasks", "gpt4all") == ExitCode.EVALUATION
    assert "pip install 'distro-node[eval]'" in capfd.readouterr().err


@needs_lm_eval
def test_an_unknown_task_is_one_line(finished: Made, tmp_path: Path, capfd) -> None:
    (tmp_path / "empty.yaml").write_text("dataset_path: json\n")
    code = evaluate(finished, "--tasks", str(tmp_path / "empty.yaml"))
    err = capfd.readouterr().err
    assert code == ExitCode.EVALUATION
    assert "no line 'task: NAME'" in err
    assert "Traceback" not in err


@needs_lm_eval
@pytest.mark.parametrize("chat", [True, False])
def test_questions_go_through_the_chat_template_where_they_are_to(
    tmp_path: Path, task: Path, monkeypatch: pytest.MonkeyPatch, chat: bool
) -> None:
    session = talking(tmp_path / "blobs")
    export(session, BlobStore(tmp_path / "blobs"), tmp_path / "model")
    asked: list[str] = []
    model = importlib.import_module("lm_eval.models.huggingface").HFLM
    apply = model.apply_chat_template

    def noted(*arguments: Any, **named: Any) -> str:
        asked.append(apply(*arguments, **named))
        return asked[-1]

    monkeypatch.setattr(model, "apply_chat_template", noted)
    request = {
        "model": str(tmp_path / "model"),
        "tasks": [str(task)],
        "limit": 2,
        "fewshot": None,
        "chat": chat,
        "before": None,
        "batch_size": 1,
        "device": "cpu",
        "seed": 0,
    }
    monkeypatch.setattr(evaluation_worker.os, "environ", dict(os.environ))
    assert evaluation_worker.measure(request)["tasks"]
    assert bool(asked) == chat
    assert all(text.startswith("<|im_start|>user\n") for text in asked)


@needs_lm_eval
@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("starts", [True, False])
def test_a_text_starts_as_documents_do(
    tmp_path: Path, starts: bool, chat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = talking(tmp_path / "blobs")
    data = replace(session.manifest.data, start_token=START if starts else None, end_token=END)
    session.manifest = replace(session.manifest, data=data)
    export(session, BlobStore(tmp_path / "blobs"), tmp_path / "model")
    kind = importlib.import_module("lm_eval.models.huggingface").HFLM
    before = START if starts else END
    request = {
        "model": str(tmp_path / "model"),
        "before": before,
        "chat": chat,
        "batch_size": 1,
        "device": "cpu",
    }
    # All that lm-eval makes of a text goes through these two.
    model = evaluation_worker._model(kind, PreTrainedTokenizerFast, request)
    given: list[Any] = []

    def answered(requests: list[Any], **_: Any) -> list[tuple[float, bool]]:
        given.extend(requests)
        return [(0.0, True)] * len(requests)

    # Nothing is computed: the requests are inspected.
    monkeypatch.setattr(model, "_loglikelihood_tokens", answered)
    a, b, c = model.tokenizer.convert_tokens_to_ids(["a", "b", "c"])
    text = [START] * (starts and not chat) + [a, b]
    assert model.tok_encode("ab") == text
    # A template writes it itself.
    if chat:
        assert model.tok_encode("<|im_start|>a") == [START, a]
    model.loglikelihood([instance(("ab", "c")), instance(("", "c"))])
    assert [tuple(each[1:]) for each in given] == [(text, [c]), ([before], [c])]
    given.clear()
    # A text's prefix occurs once, and is not a part of it.
    model.loglikelihood_rolling([instance(("ab",))])
    assert [tuple(each[1:3]) for each in given] == [([before], [a, b])]


def instance(arguments: tuple[str, ...]) -> Any:
    """A question as lm-eval has it."""
    return importlib.import_module("lm_eval.api.instance").Instance(
        "loglikelihood", {}, arguments, 0
    )


def test_what_lm_eval_learns_of_a_beginning(tmp_path: Path) -> None:
    def told(before: int | None, *, chat: bool = False, **table: Any) -> dict[str, Any]:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(table))
        return evaluation_worker.beginning(tmp_path, before, chat=chat)

    starts = {"add_bos_token": True, "bos_token": "<s>"}
    assert told(5, **starts) == {"add_bos_token": True, "prefix_token_id": 5}
    assert told(5, chat=True, **starts) == {"add_bos_token": False, "prefix_token_id": 5}
    assert told(6, add_bos_token=False) == {"add_bos_token": False, "prefix_token_id": 6}
    # Of bytes, where there is nothing.
    assert told(None, add_bos_token=False) == {"add_bos_token": False, "prefix_token_id": 0}
    assert told(None, add_bos_token=False, eos_token="x") == {"add_bos_token": False}


def test_who_has_learned_from_conversations_is_asked_through_the_template(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        asks_by_template(True, SFT, tmp_path)
    assert refused.value.code == ExitCode.EVALUATION
    assert not asks_by_template(None, SFT, tmp_path)
    (tmp_path / CHAT_TEMPLATE_NAME).write_text(CHATML)
    assert asks_by_template(None, SFT, tmp_path)
    assert asks_by_template(None, DPO, tmp_path)
    assert not asks_by_template(None, "causal_lm", tmp_path)
    assert asks_by_template(True, "causal_lm", tmp_path)
    assert not asks_by_template(False, SFT, tmp_path)


def test_what_is_meant_by_tasks(tmp_path: Path) -> None:
    assert chosen_tasks(("gpt4all",)) == GPT4ALL
    assert chosen_tasks(("piqa", "gpt4all", "mine"))[0] == "piqa"
    assert len(chosen_tasks(("piqa", "gpt4all", "mine"))) == 7
    for wrong in ((str(tmp_path / "x.yaml"),), tuple(map(str, range(MAX_TASKS + 1)))):
        with pytest.raises(UserError) as refused:
            chosen_tasks(wrong)
        assert refused.value.code == ExitCode.EVALUATION


def test_what_went_wrong_is_reported_by_its_cause() -> None:
    class OfflineModeIsEnabled(Exception):
        pass

    told = ValueError("the data set")
    told.__cause__ = OfflineModeIsEnabled("no")
    assert failure(told) == "offline"
    assert failure(ConnectionRefusedError("no")) == "offline"
    assert failure(ValueError("of ours")) == "failed"


def test_the_numbers_of_a_result() -> None:
    found = {
        "results": {
            "a": {
                "alias": "a",
                "sample_len": 9,
                "acc,none": 0.5,
                "acc_stderr,none": 0.1,
                "acc_norm,none": 0.6,
            },
            "b": {"exact_match,none": 1, "exact_match_stderr,none": "N/A"},
        },
        "n-samples": {"a": {"original": 9, "effective": 7}},
    }
    assert scores(found) == [
        {"task": "a", "metric": "acc", "value": 0.5, "error": 0.1, "samples": 7},
        {"task": "a", "metric": "acc_norm", "value": 0.6, "error": None, "samples": 7},
        {"task": "b", "metric": "exact_match", "value": 1.0, "error": None, "samples": None},
    ]


def test_the_numbers_of_numpy_and_of_several_filters() -> None:
    found = {
        "results": {
            "a": {"mcc,none": np.float64(0.4), "mcc_stderr,none": np.float64(0.1), "ok,none": True},
            "b": {
                "exact_match,strict-match": np.float32(0.5),
                "exact_match_stderr,strict-match": math.nan,
                "exact_match,flexible-extract": 1,
                "exact_match_stderr,flexible-extract": 0.25,
            },
            "c": {"word_perplexity,none": math.inf},
        }
    }
    rows = json.loads(json.dumps(scores(found)))
    assert [(each["task"], each["metric"], each["value"], each["error"]) for each in rows] == [
        ("a", "mcc", 0.4, 0.1),
        ("b", "exact_match,strict-match", 0.5, None),
        ("b", "exact_match,flexible-extract", 1.0, 0.25),
    ]


def test_scores_on_a_full_disk_are_whole_or_absent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"round": 1}\n')
    before, limit = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, limit[1]))
    try:
        _add_to_history(path, SCORES)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert path.read_bytes() == before
    assert "the history cannot be written" in caplog.text
    _add_to_history(path, SCORES)
    assert last_scores(path) == SCORES


def test_one_number_a_task_is_compared_and_served() -> None:
    def score(task: str, metric: str, value: float) -> TaskScore:
        return TaskScore(task=task, metric=metric, value=value, error=None, samples=None)

    rows = (
        *(score("winogrande", "acc", 0.5), score("winogrande", "acc_norm", 0.1)),
        *(score("piqa", "acc", 0.6), score("piqa", "acc_norm", 0.7)),
        *(score("mine", "bleu", 0.2), score("yours", "f1", 0.4)),
        *(score("sums", "bleu", 0.8), score("sums", "exact_match,strict-match", 0.3)),
    )
    measured = TaskScores(**{**vars(SCORES), "tasks": rows})
    assert {t: s.value for t, s in measured.main().items()} == {
        "winogrande": 0.5,
        "piqa": 0.7,
        "mine": 0.2,
        "yours": 0.4,
        "sums": 0.3,
    }
    telemetry = Telemetry(PeerId(bytes(32)))
    telemetry.scored(measured)

    def served(task: str) -> float:
        return sample(told_by(telemetry), "task_score", task=task)

    assert served("winogrande") == 0.5
    assert served("piqa") == 0.7
    assert served("other") == pytest.approx(0.3)
    assert math.isnan(served("hellaswag"))


@pytest.mark.parametrize(
    "change",
    [{"round": -1}, {"record": "ab"}, {"tasks": [{"task": "x"}]}, {"time": "now"}, {"more": 1}],
)
def test_what_is_no_score_is_none(change: dict[str, object]) -> None:
    plain = to_plain(SCORES, named=True)
    assert read_scores(json.loads(json.dumps(plain))) == SCORES
    assert read_scores(plain | change) is None
    assert read_scores(None) is None


def test_a_history_with_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    good = {"round": 3, "scores": to_plain(SCORES, named=True)}
    path.write_text(
        "\n".join([json.dumps(good), '{"scores": 5}', '{"round": 4, "heldout": 1.0}', "{"])
    )
    telemetry = Telemetry(PeerId(bytes(32)))
    telemetry.keep_history(path)
    assert telemetry.scores == SCORES
