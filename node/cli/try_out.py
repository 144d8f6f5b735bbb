"""`distro-node generate` and `evaluate`: try out and measure what the model has learned so far."""

from __future__ import annotations

import sys
from contextlib import suppress
from json import dumps
from pathlib import Path
from typing import Annotated, Any

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
    which,
)
from .settings_parameters import option_of

_Device = Annotated[
    str, option_of(TrainerSettings, "device", help="What to compute on, as with `join`.")
]
_Seed = Annotated[
    int,
    typer.Option(
        "--seed", metavar="N", min=0, max=2**32 - 1, help="The same seed draws the same again."
    ),
]


def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="The beginning of a text; without it you are asked."),
    ] = None,
    grid: Annotated[
        Path | None,
        typer.Option(
            "--grid",
            metavar="FILE.png",
            readable=False,
            help="Of a swarm that learns from images: draw some, and write them to this file.",
        ),
    ] = None,
    images: Annotated[
        int, typer.Option("--images", metavar="N", min=1, max=1024, help="How many, with --grid.")
    ] = 16,
    steps: Annotated[
        int,
        typer.Option(
            "--steps",
            metavar="N",
            min=1,
            max=10_000,
            help="In how many steps each is drawn, with --grid: more take longer and look better.",
        ),
    ] = 50,
    swarm: SwarmOption = None,
    round: RoundState = None,
    best: BestState = False,
    max_tokens: Annotated[
        int,
        typer.Option("--max-tokens", metavar="N", min=1, max=1 << 20, help="How much at most."),
    ] = 200,
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature",
            metavar="T",
            min=0.0,
            max=10.0,
            help="How bold it is: 0 takes the likeliest each time.",
        ),
    ] = 0.8,
    seed: _Seed = 0,
    threads: Annotated[int, option_of(TrainerSettings, "threads", help="CPU threads to use.")] = 1,
    device: _Device = "cpu",
    data_dir: DataDirectory = None,
) -> None:
    """Let the model write on from a beginning, or answer.

    A model that learned from conversations answers PROMPT; one that fills gaps fills those in it; one
    that learned from images draws them with --grid, those of one class below each other.

    Takes the newest state that this node has, or another that it keeps, in a process of its own: a node
    that trains goes on undisturbed. Without a beginning it asks for one after the other. For example:

    \b
        distro-node generate "Once upon"
        distro-node generate --grid images.png
    """
    data = data_directory(data_dir)
    if grid is not None:
        if prompt is not None:
            raise UserError(ExitCode.USAGE, "--grid takes no PROMPT", "leave one of the two out")
        _draw(
            grid,
            swarm=only_swarm(swarm, data),
            data_dir=data.root,
            selector=which(round, best),
            count=images,
            steps=steps,
            seed=seed,
            threads=threads,
            device=parse_device(device),
        )
        return
    from ..results.generate import GenerateSettings, Writer, open_writer

    settings = GenerateSettings(
        swarm=only_swarm(swarm, data),
        data_dir=data.root,
        selector=which(round, best),
        seed=seed,
        temperature=temperature,
        max_tokens=max_tokens,
        threads=threads,
        device=parse_device(device),
    )
    import trio

    unreadable = False

    def show(text: str) -> None:
        nonlocal unreadable
        unreadable |= UNREADABLE in text
        _show(text)

    async def run() -> None:
        async with open_writer(settings) as writer:
            if prompt is not None:
                _show(prompt if writer.continues else f"{prompt}\n")
                await writer.write(prompt, show)
                _show("\n")
                if unreadable:
                    typer.echo(_UNREADABLE_NOTE, err=True)
            else:
                await _converse(writer)

    async def _converse(writer: Writer) -> None:
        if sys.stdin.isatty():
            typer.echo(
                f"The model after round {writer.round:,}. Give it a beginning; Ctrl-D ends.",
                err=True,
            )
        while (line := await _ask()) is not None:
            with suppress(KeyboardInterrupt):
                try:
                    await writer.write(line, _show)
                except UserError as error:
                    # A prompt that is too long does not end the command.
                    typer.echo(f"{error.problem}; {error.remedy}", err=True)
            _show("\n")

    async def _ask() -> str | None:
        return await trio.to_thread.run_sync(
            _read_line,
            # With this Ctrl-C does not wait for the end of a line. The stubs bundled with libp2p
            # know only an older trio without this name.
            abandon_on_cancel=True,  # pyright: ignore[reportCallIssue]
        )

    trio.run(run)


def evaluate(
    tasks: Annotated[
        str,
        typer.Option(
            "--tasks",
            metavar="TASKS",
            help="What to measure, between commas: lm-eval's tasks, files of tasks (.yaml), or gpt4all "
            "for the six of that table.",
        ),
    ],
    swarm: SwarmOption = None,
    round: RoundState = None,
    best: BestState = False,
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", min=1, help="Ask so many questions of a task alone."),
    ] = None,
    fewshot: Annotated[
        int | None,
        typer.Option(
            "--fewshot",
            metavar="N",
            min=0,
            max=1024,
            help="Examples in front of each question. [default: as the task says; gpt4all has none]",
        ),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Ask through the model's chat template. [default: where the swarm learns from "
            "conversations]",
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", metavar="N", min=1, max=65536, help="Questions at once.")
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
    """Measure the model by the tasks of lm-eval.

    What comes out is bound to the round and the record that were measured, kept in the swarm's history,
    and shown by `distro-node status`. Tasks of lm-eval come from the internet; files of tasks need none.
    For example:

    \b
        distro-node evaluate --tasks gpt4all
    """
    data = data_directory(data_dir)
    named = tuple(each.strip() for each in tasks.split(",") if each.strip())
    if not named:
        raise UserError(ExitCode.USAGE, "no task was named", "give --tasks gpt4all, for example")
    import trio

    from ..results.evaluate import EvaluateSettings, evaluate_swarm

    settings = EvaluateSettings(
        swarm=only_swarm(swarm, data),
        data_dir=data.root,
        tasks=named,
        selector=which(round, best),
        limit=limit,
        fewshot=fewshot,
        chat=chat,
        batch_size=batch_size,
        device=parse_device(device),
        threads=threads,
        seed=seed,
    )
    scores = trio.run(evaluate_swarm, settings)
    if json:
        typer.echo(dumps(to_plain(scores, named=True)))
        return
    asked = ", asked through the chat template" if scores.chat else ""
    typer.echo(f"After round {scores.round:,} (record {scores.record}){asked}:")
    width = max(len(score.task) for score in scores.tasks)
    for score in scores.tasks:
        error = "" if score.error is None else f" ± {score.error:.4f}"
        asked = "" if score.samples is None else f"  of {score.samples:,}"
        typer.echo(f"  {score.task:<{width}}  {score.metric:<12} {score.value:.4f}{error}{asked}")


_UNREADABLE_NOTE = (
    f"{UNREADABLE} stands for bytes that are no text: a model over bytes writes some until it has "
    "learned more"
)


def _draw(file: Path, **settings: Any) -> None:
    import trio

    from ..results.image_grid import GridSettings, draw_grid

    drawn = trio.run(draw_grid, GridSettings(to=file.absolute(), **settings))
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
