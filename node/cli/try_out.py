"""`distro-node generate` and `evaluate`: try out and measure what the model has learned so far."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack, suppress
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...protocol.wire.structure import to_plain
from ..errors import ExitCode, UserError
from ..settings.components import TrainerSettings
from ..settings.values import parse_device
from ..util.sanitize import UNREADABLE, harmless, harmless_piece
from .options import (
    BestState,
    DataDirectory,
    Json,
    RoundState,
    SwarmOption,
    data_directory,
    only_swarm,
    state_selector,
)
from .settings_parameters import option_of
from .stage_display import stage_display

if TYPE_CHECKING:
    from ..results.generate import Writer
    from ..telemetry.task_scores import TaskScores

_Device = Annotated[
    str, option_of(TrainerSettings, "device", help="The device to compute on, as with `join`.")
]
_Seed = Annotated[
    int,
    typer.Option(
        "--seed",
        metavar="N",
        min=0,
        max=2**32 - 1,
        help="Seed of the random numbers: the same seed gives the same result.",
    ),
]


def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            help="The text to continue or to answer. Without it the command asks for prompts.",
        ),
    ] = None,
    grid: Annotated[
        Path | None,
        typer.Option(
            "--grid",
            metavar="FILE.png",
            readable=False,
            help="For a swarm that trains on images: generate some and write them to this file.",
        ),
    ] = None,
    images: Annotated[
        int,
        typer.Option(
            "--images", metavar="N", min=1, max=1024, help="Number of images, with --grid."
        ),
    ] = 16,
    steps: Annotated[
        int,
        typer.Option(
            "--steps",
            metavar="N",
            min=1,
            max=10_000,
            help="Sampling steps per image, with --grid: more take longer and look better.",
        ),
    ] = 50,
    swarm: SwarmOption = None,
    round: RoundState = None,
    best: BestState = False,
    max_tokens: Annotated[
        int,
        typer.Option(
            "--max-tokens",
            metavar="N",
            min=1,
            max=1 << 20,
            help="Maximum number of tokens to generate.",
        ),
    ] = 200,
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature",
            metavar="T",
            min=0.0,
            max=10.0,
            help="Sampling temperature: 0 always takes the most likely token; higher is more random.",
        ),
    ] = 0.8,
    top_p: Annotated[
        float,
        typer.Option(
            "--top-p",
            metavar="P",
            min=0.0,
            max=1.0,
            help="Draw among the most likely tokens alone: as few as have this probability together.",
        ),
    ] = 1.0,
    seed: _Seed = 0,
    threads: Annotated[int, option_of(TrainerSettings, "threads", help="CPU threads to use.")] = 1,
    device: _Device = "cpu",
    data_dir: DataDirectory = None,
) -> None:
    """Generate text or images with the model.

    A model trained on conversations answers PROMPT; one trained to fill gaps fills the gaps in it; any
    other language model continues it. A model trained on images generates them with --grid, with one
    column per class.

    Uses the newest parameters that this node has, or others that it keeps, in a separate process, so it
    does not disturb a node that trains. Without PROMPT it asks for one prompt after the other. For
    example:

    \b
        distro-node generate "Once upon"
        distro-node generate --grid images.png
    """
    data = data_directory(data_dir)
    if prompt is not None:
        _check_text(prompt)
    if grid is not None:
        if prompt is not None:
            raise UserError(ExitCode.USAGE, "--grid takes no PROMPT", "leave one of the two out")
        _draw(
            grid,
            swarm=only_swarm(swarm, data),
            data_dir=data.root,
            selector=state_selector(round, best),
            count=images,
            steps=steps,
            seed=seed,
            threads=threads,
            device=parse_device(device),
        )
        return
    from ..results.generate import GenerateSettings, open_writer

    settings = GenerateSettings(
        swarm=only_swarm(swarm, data),
        data_dir=data.root,
        selector=state_selector(round, best),
        seed=seed,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        threads=threads,
        device=parse_device(device),
    )
    import trio

    async def run() -> None:
        async with AsyncExitStack() as stack:
            # The display ends before the model writes.
            with stage_display() as progress:
                writer = await stack.enter_async_context(open_writer(settings, progress))
            if prompt is not None:
                await _answer(writer, prompt)
            else:
                await _converse(writer)

    trio.run(run)


async def _answer(writer: Writer, prompt: str) -> None:
    """Print a prompt and what the model writes after it."""
    unreadable = False

    def show_and_note(text: str) -> None:
        nonlocal unreadable
        unreadable |= UNREADABLE in text
        _show(text)

    _show(prompt if writer.continues else f"{prompt}\n")
    await writer.write(prompt, show_and_note)
    _show("\n")
    if unreadable:
        typer.echo(_UNREADABLE_NOTE, err=True)


async def _converse(writer: Writer) -> None:
    """Ask for prompts and print what the model writes, until the end of the input."""
    import trio

    if sys.stdin.isatty():
        typer.echo(
            f"The model after round {writer.round:,}. Enter a prompt; Ctrl-D ends.", err=True
        )

    async def ask() -> str | None:
        return await trio.to_thread.run_sync(
            _read_line,
            # With this option, Ctrl-C does not wait for the end of a line. The stubs of trio that are
            # bundled with libp2p are older and lack the option.
            abandon_on_cancel=True,  # pyright: ignore[reportCallIssue]
        )

    while (line := await ask()) is not None:
        with suppress(KeyboardInterrupt):
            try:
                # The note on unreadable bytes is left out: it might follow every answer.
                await writer.write(line, _show)
            except UserError as error:
                # A prompt that is too long does not end the command.
                typer.echo(f"{error.problem}; {error.remedy}", err=True)
        _show("\n")


def evaluate(
    tasks: Annotated[
        str,
        typer.Option(
            "--tasks",
            metavar="TASKS",
            help="Tasks to evaluate, separated by commas: names from lm-eval, task files (.yaml), or "
            "gpt4all for the six tasks of GPT4All's benchmark table. For a model that names classes, "
            "or learns from pairs of answers: heldout, its accuracy on held-out data.",
        ),
    ],
    swarm: SwarmOption = None,
    round: RoundState = None,
    best: BestState = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=1,
            help="Maximum number of questions per task. [default: all]",
        ),
    ] = None,
    fewshot: Annotated[
        int | None,
        typer.Option(
            "--fewshot",
            metavar="N",
            min=0,
            max=1024,
            help="Examples before each question. [default: the task's own number; none for gpt4all]",
        ),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Ask through the model's chat template. [default: if the swarm trains on "
            "conversations]",
        ),
    ] = None,
    batch_size: Annotated[
        int,
        typer.Option("--batch-size", metavar="N", min=1, max=65536, help="Questions per batch."),
    ] = 1,
    seed: _Seed = 0,
    threads: Annotated[
        int | None,
        option_of(
            TrainerSettings,
            "threads",
            help="CPU threads to use. [default: as many as there are cores]",
        ),
    ] = None,
    device: _Device = "cpu",
    data_dir: DataDirectory = None,
    json: Json = False,
) -> None:
    """Evaluate the model on tasks of lm-eval.

    The scores name the round and the record of the evaluated model. They are kept in the swarm's history
    and shown by `distro-node status`. lm-eval downloads its own tasks from the internet; task files need
    no connection. For example:

    \b
        distro-node evaluate --tasks gpt4all
    """
    data = data_directory(data_dir)
    named = tuple(each.strip() for each in tasks.split(",") if each.strip())
    if not named:
        raise UserError(ExitCode.USAGE, "no task is given", "give one, for example --tasks gpt4all")
    import trio

    from ..results.evaluate import EvaluateSettings, evaluate_swarm

    settings = EvaluateSettings(
        swarm=only_swarm(swarm, data),
        data_dir=data.root,
        tasks=named,
        selector=state_selector(round, best),
        limit=limit,
        fewshot=fewshot,
        chat=chat,
        batch_size=batch_size,
        device=parse_device(device),
        threads=threads,
        seed=seed,
    )
    scores = trio.run(evaluate_swarm, settings, stage_display)
    if json:
        typer.echo(dumps(to_plain(scores, named=True)))
    else:
        _show_scores(scores)


def _show_scores(scores: TaskScores) -> None:
    template = ", asked through the chat template" if scores.chat else ""
    typer.echo(f"After round {scores.round:,} (record {scores.record}){template}:")
    width = max(len(score.task) for score in scores.tasks)
    for score in scores.tasks:
        error = "" if score.error is None else f" ± {score.error:.4f}"
        samples = "" if score.samples is None else f"  of {score.samples:,}"
        typer.echo(f"  {score.task:<{width}}  {score.metric:<12} {score.value:.4f}{error}{samples}")


_UNREADABLE_NOTE = (
    f"{UNREADABLE} stands for bytes that are not text; a byte-level model generates some early in "
    "its training"
)


def _check_text(prompt: str) -> None:
    """Raise `UserError` (`USAGE`) for bytes that are not UTF-8, which Python passes on as surrogates."""
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise UserError(
            ExitCode.USAGE,
            "PROMPT is not text in UTF-8",
            "set the terminal's encoding to UTF-8, or write the prompt in other characters",
        ) from None


def _draw(file: Path, **settings: Any) -> None:
    import trio

    from ..results.image_grid import GridSettings, draw_grid

    with stage_display() as progress:
        drawn = trio.run(draw_grid, GridSettings(to=file.absolute(), **settings), progress)
    typer.echo(f"Wrote images of the model after round {drawn.round:,} to {file}")
    if drawn.classes:
        typer.echo(f"  from left to right: {', '.join(map(harmless, drawn.classes))}")


def _show(text: str) -> None:
    # A model's text may contain control sequences for a terminal.
    shown = text if not sys.stdout.isatty() else harmless_piece(text)
    sys.stdout.write(shown)
    sys.stdout.flush()


def _read_line() -> str | None:
    if sys.stdin.isatty():
        sys.stderr.write("> ")
        sys.stderr.flush()
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None
