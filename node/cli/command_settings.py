"""The settings of commands that run no node: a frozen dataclass for each command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import ExitCode, UserError
from ..settings.components import PeeringSettings, TrainerSettings
from ..settings.setting import redeclared, setting
from ..settings.tree import NEWEST, DaemonSettings, StateSelector
from ..settings.values import (
    DEFAULT_MODEL_ADDRESS,
    address_text,
    parse_device,
    parse_model_address,
    parse_size,
)
from ..training.gguf_formats import GgufType


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """The settings of `generate`."""

    prompt: str | None = setting(
        None,
        metavar="PROMPT",
        argument=True,
        help="The text to continue or to answer. Without it the command asks for prompts.",
    )
    grid: Path | None = setting(
        None,
        metavar="FILE.png",
        help="For a swarm that trains on images: generate some and write them to this file.",
    )
    images: int = setting(16, metavar="N", low=1, high=1024, help="Number of images, with --grid.")
    steps: int = setting(
        50,
        metavar="N",
        low=1,
        high=10_000,
        help="Sampling steps per image, with --grid: more take longer and look better.",
    )
    swarm: str | None = setting(
        None,
        metavar="SWARM",
        help="The swarm-id, or a link to the swarm. [default: the only one that this node knows]",
    )
    state: StateSelector = NEWEST
    max_tokens: int = setting(
        200, metavar="N", low=1, high=1 << 20, help="Maximum number of tokens to generate."
    )
    temperature: float = setting(
        0.8,
        metavar="T",
        low=0.0,
        high=10.0,
        help="Sampling temperature: 0 always takes the most likely token; higher is more random.",
    )
    top_p: float = setting(
        1.0,
        metavar="P",
        low=0.0,
        high=1.0,
        help="Draw among the most likely tokens alone: as few as have this probability together.",
    )
    seed: int = setting(
        0,
        metavar="N",
        low=0,
        high=2**32 - 1,
        help="Seed of the random numbers: the same seed gives the same result.",
    )
    threads: int = redeclared(TrainerSettings, "threads", default=1, help="CPU threads to use.")
    device: str = redeclared(
        TrainerSettings,
        "device",
        default="cpu",
        parse=parse_device,
        help="The device to compute on, as with `join`.",
    )
    data_dir: Path = redeclared(DaemonSettings, "data_dir")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """The settings of `evaluate`."""

    tasks: str = setting(
        metavar="TASKS",
        help="Tasks to evaluate, separated by commas: names from lm-eval, task files (.yaml), or "
        "gpt4all for the six tasks of GPT4All's benchmark table. For a model that names classes, "
        "or learns from pairs of answers: heldout, its accuracy on held-out data.",
    )
    swarm: str | None = redeclared(GenerateOptions, "swarm")
    state: StateSelector = NEWEST
    limit: int | None = setting(
        None, metavar="N", low=1, help="Maximum number of questions per task. [default: all]"
    )
    fewshot: int | None = setting(
        None,
        metavar="N",
        low=0,
        high=1024,
        help="Examples before each question. [default: the task's own number; none for gpt4all]",
    )
    chat: bool | None = setting(
        None,
        help="Ask through the model's chat template. [default: if the swarm trains on conversations]",
    )
    batch_size: int = setting(1, metavar="N", low=1, high=65536, help="Questions per batch.")
    seed: int = redeclared(GenerateOptions, "seed")
    threads: int | None = redeclared(
        TrainerSettings,
        "threads",
        help="CPU threads to use. [default: as many as there are cores]",
    )
    device: str = redeclared(GenerateOptions, "device")
    data_dir: Path = redeclared(DaemonSettings, "data_dir")

    @property
    def task_names(self) -> tuple[str, ...]:
        """The named tasks, at least one. Raises `UserError` (`USAGE`)."""
        named = tuple(each.strip() for each in self.tasks.split(",") if each.strip())
        if not named:
            raise UserError(
                ExitCode.USAGE, "no task is given", "give one, for example --tasks gpt4all"
            )
        return named


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The settings of `serve`."""

    model: str | None = setting(
        None,
        metavar="SWARM|DIRECTORY",
        argument=True,
        help="The swarm-id, a link to the swarm, or the directory of an exported model. [default: "
        "the only swarm that this node knows]",
    )
    address: tuple[str, int] = setting(
        address_text(DEFAULT_MODEL_ADDRESS),
        metavar="HOST:PORT",
        parse=parse_model_address,
        help="Where the model is served.",
    )
    key_file: Path | None = setting(
        None,
        metavar="FILE",
        help="A file whose first line is the key that programs have to send. [default: none at a "
        "loopback address, elsewhere a new one each time]",
    )
    tls_cert: Path | None = setting(
        None,
        metavar="FILE",
        help="A certificate (PEM), to serve over TLS: needed at an address that others reach.",
    )
    tls_key: Path | None = setting(None, metavar="FILE", help="The certificate's key (PEM).")
    plain: bool = setting(
        False,
        opposite="",
        help="Serve without TLS even at an address that others can reach.",
    )
    state: StateSelector = NEWEST
    max_tokens: int = setting(
        512,
        metavar="N",
        low=1,
        high=1 << 20,
        help="The most tokens of an answer, whatever a program asks for.",
    )
    time_limit: float = setting(
        300,
        metavar="SECONDS",
        low=1,
        high=86_400,
        help="How long an answer may be written; then it ends as it is.",
    )
    queue: int = setting(
        8,
        metavar="N",
        low=0,
        high=64,
        help="Requests that wait while one is answered; more are refused.",
    )
    memory: int = setting(
        "2GB",
        metavar="SIZE",
        parse=parse_size,
        help="The most main memory that an answer may take beside the model.",
    )
    threads: int = redeclared(GenerateOptions, "threads")
    device: str = redeclared(GenerateOptions, "device", help="What to compute on, as with `join`.")
    data_dir: Path = redeclared(DaemonSettings, "data_dir")


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The settings of `export`."""

    swarm: str = setting(
        metavar="SWARM", argument=True, help="The swarm-id, or a link to the swarm."
    )
    to: Path = setting(metavar="DIRECTORY", help="Where to write the model.")
    state: StateSelector = NEWEST
    merged: bool = setting(
        False,
        opposite="",
        help="For a swarm that trains adapters: write the full model with the adapters merged into "
        "it, not the adapters alone.",
    )
    gguf: bool = setting(
        False,
        opposite="",
        help="Write one GGUF file for llama.cpp, Ollama and LM Studio, and not a directory for "
        "transformers.",
    )
    quantise: GgufType | None = setting(
        None,
        metavar="TYPE",
        help="With --gguf: the type of the weights: f32, f16, bf16 or q8_0 (a quarter of f32). "
        "Default: f16.",
    )
    push: str | None = setting(
        None,
        metavar="OWNER/NAME",
        help="Also upload the model to the Hugging Face Hub under this name.",
    )
    data_dir: Path = redeclared(DaemonSettings, "data_dir")

    @property
    def gguf_type(self) -> GgufType | None:
        """The type of a GGUF file's weights; None if no such file is written. Raises `UserError`
        (`USAGE`)."""
        if self.quantise is not None and not self.gguf:
            raise UserError(ExitCode.USAGE, "--quantise needs --gguf", "give both, or neither")
        return (self.quantise or GgufType.F16) if self.gguf else None


@dataclass(frozen=True, kw_only=True)
class CreateOptions:
    """The settings of `create`."""

    manifest: Path | None = setting(
        None, metavar="MANIFEST.toml", argument=True, help="The file that describes the run."
    )
    data: tuple[str, ...] = setting(
        (),
        metavar="PATH",
        help="Training data: a file or directory of text, JSON lines, CSV or Parquet (also "
        "compressed), a saved data set, or hf://OWNER/NAME; may be repeated.",
    )
    bootstrap: tuple[str, ...] = redeclared(PeeringSettings, "bootstrap")
    data_dir: Path = redeclared(DaemonSettings, "data_dir")
    passphrase_file: Path | None = redeclared(DaemonSettings, "passphrase_file")
    dry_run: bool = setting(
        False,
        opposite="",
        help="Create no swarm; only print the expected data, rounds, time and traffic.",
    )
    device: str = setting(
        "auto",
        metavar="DEVICE",
        help="Device on which --dry-run measures a round and the task dpo compares pairs with the "
        "initial model: auto, cpu, cuda, …",
    )
    public: bool = setting(
        False,
        opposite="",
        help="List the swarm for strangers: its members publish it at bootstrap peers that list "
        "swarms, where `distro-node swarms` finds it.",
    )
    example: bool = setting(
        False, opposite="", help="Print a commented manifest file to start from."
    )


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """The settings of `service`."""

    command: tuple[str, ...] = setting(
        (),
        metavar="-- COMMAND…",
        argument=True,
        help="For install: `join` or `bootstrap` with its arguments, as in a terminal.",
    )
    name: str = setting("distro-node", metavar="NAME", help="The service's name.")
    system: bool = setting(
        False,
        opposite="user",
        help="Install it for the whole system, sandboxed and under its own user, or for your user.",
    )
    force: bool = setting(
        False,
        opposite="",
        help="Replace or remove the service's file even if it was edited; a copy of it is kept next "
        "to it.",
    )
    show: bool = setting(False, opposite="", help="Only show the file that would be written.")
