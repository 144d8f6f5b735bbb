"""The limits for a stranger's definition: seconds and memory, also for code that no signal
interrupts."""

from __future__ import annotations

import json
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from distro_node.node.trainer.models.initial_parameters import read_checkpoint
from distro_node.node.trainer.models.model import model_config
from distro_node.node.trainer.models.swarm_tokenizer import tokenise
from distro_node.node.training.errors import TrainerFailed
from distro_node.node.training.resource_limits import limited
from distro_node.node.util.operating_system import cpu_seconds, data_bytes
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from trainer.support import TINY_LLAMA, refused

_STUCK = """
from distro_node.node.training import resource_limits
resource_limits._GRACE_SECONDS = 0.0
with resource_limits.limited("bad_data", "this", seconds=0.5, memory=1 << 30):
    max(range(10**15))
"""


def test_code_of_ours_is_interrupted_and_all_limits_are_as_before() -> None:
    kinds = (resource.RLIMIT_CPU, resource.RLIMIT_DATA)
    before = [resource.getrlimit(each) for each in kinds]
    handler = signal.getsignal(signal.SIGALRM)

    def endless() -> None:
        with limited("bad_data", "this", seconds=0.05, memory=1 << 30):
            while True:
                time.sleep(0.01)

    with refused("bad_data", r"^this takes more than 0\.05 s$"):
        endless()
    assert signal.getsignal(signal.SIGALRM) is handler
    assert before == [resource.getrlimit(each) for each in kinds]


def test_limits_of_several_threads_leave_nothing_behind() -> None:
    """A second thread finds the first one's lowered limit, and must not take it for the original
    one: a process that had computed for hours was once ended a minute later."""
    before = resource.getrlimit(resource.RLIMIT_CPU)
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with limited("bad_data", "this", seconds=60.0):
            inside.set()
            leave.wait()

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(60.0)
    lowered, _ = resource.getrlimit(resource.RLIMIT_CPU)
    with limited("bad_data", "this", seconds=600.0):
        # The lowest applies while there are several.
        assert resource.getrlimit(resource.RLIMIT_CPU) == (lowered, before[1])
        leave.set()
        thread.join()
        assert resource.getrlimit(resource.RLIMIT_CPU)[0] > lowered
    assert resource.getrlimit(resource.RLIMIT_CPU) == before


def test_code_that_does_not_return_is_ended_with_its_process() -> None:
    """The whole loop runs in C and never checks for signals."""
    ended = subprocess.run([sys.executable, "-c", _STUCK], check=False, timeout=100)
    assert ended.returncode == -signal.SIGXCPU


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts by two clocks")
def test_seconds_are_counted_from_what_the_kernel_has_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel's ticks may be far ahead of the exact time: a process was once ended before it had
    begun."""
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    ticks = cpu_seconds()
    exact = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    # The CPU time of the same process, and not another clock.
    assert ticks == pytest.approx(exact, rel=0.3, abs=1.0)
    with limited("bad_data", "this", seconds=60.0, memory=1 << 30):
        soft, _ = resource.getrlimit(resource.RLIMIT_CPU)
    assert soft >= ticks + 60.0


@pytest.mark.skipif(data_bytes() is None, reason="the system does not say what is used")
def test_memory_is_bounded() -> None:
    with (
        pytest.raises(TrainerFailed, match="this takes more than 256 MiB"),
        limited("bad_model", "this", seconds=60.0, memory=256 << 20),
    ):
        bytearray(1 << 30)
    assert len(bytearray(300 << 20)) == 300 << 20


def test_a_regular_expression_that_gives_up_is_the_tokenizers_fault() -> None:
    tokenizer = Tokenizer(WordLevel({"a": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = Split(Regex("(a+)+$"), "isolated")
    assert tokenise(tokenizer, "a").ids == [0]
    with refused("bad_data", r"cannot tokenise the text: .*limit"):
        tokenise(tokenizer, "a" * 40 + "!")


@pytest.mark.parametrize(
    "header",
    [
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 100_000_000) + b"{}",
        struct.pack("<Q", 40_000) + b'{"a":' * 8000,
        # One that extends beyond the file, and two in one place.
        *(
            struct.pack("<Q", len(text)) + text + bytes(64)
            for text in (
                json.dumps(
                    {"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}
                ).encode(),
                json.dumps(
                    {
                        name: {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}
                        for name in ("a", "b")
                    }
                ).encode(),
            )
        ),
    ],
    ids=["endless header", "longer than the file", "nested", "beyond the file", "overlapping"],
)
def test_a_hostile_head_of_weights_is_refused(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY_LLAMA))
    (tmp_path / "model.safetensors").write_bytes(header)
    with refused("bad_model", r"model\.safetensors cannot be read"):
        read_checkpoint(tmp_path, model_config(TINY_LLAMA))
