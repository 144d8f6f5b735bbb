"""`distro-node generate` and `evaluate`: try out and measure what the model has learned so far."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack, suppress
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ...protocol.wire.manifest import SwarmId
from ...protocol.wire.structure import to_plain
from ..errors import ExitCode, UserError
from ..storage.data_dir import DataDir
from ..util.sanitize import UNREADABLE, harmless, harmless_piece
from .command_settings import EvaluateOptions, GenerateOptions
from .options import Json, only_swarm, refuse_ignored
from .settings_parameters import with_settings
from .stage_display import stage_display

if TYPE_CHECKING:
    from ..results.generate import Writer
    from ..telemetry.task_scores import TaskScores


_FOR_TEXT, _FOR_IMAGES = ("max_tokens", "temperature", "top_p"), ("images", "steps")


@with_settings
def generate(ctx: typer.Context, options: GenerateOptions) -> None:
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
    data, prompt = DataDir(options.data_dir), options.prompt
    if prompt is not None:
        _check_text(prompt)
    if options.grid is not None:
        if prompt is not None:
            raise UserError(ExitCode.USAGE, "--grid takes no PROMPT", "leave one of the two out")
        refuse_ignored(ctx, "with --grid", "leave one of the two out", *_FOR_TEXT)
        _draw(options.grid, only_swarm(options.swarm, data), options)
        return
    refuse_ignored(ctx, "without --grid", "add --grid FILE.png, or leave it out", *_FOR_IMAGES)
    from ..results.generate import GenerateSettings, open_writer

    settings = GenerateSettings(
        swarm=only_swarm(options.swarm, data),
        data_dir=data.root,
        selector=options.state,
        seed=options.seed,
        temperature=options.temperature,
        top_p=options.top_p,
        max_tokens=options.max_tokens,
        threads=options.threads,
        device=options.device,
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
    """Ask for prompts and print what the model writes, until the end of the input.

    Raises the `UserError` of the first refused prompt if nobody was there to read it.
    """
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

    asked, refused = 0, list[UserError]()
    while (line := await ask()) is not None:
        asked += 1
        with suppress(KeyboardInterrupt):
            try:
                _check_text(line)
                # The note on unreadable bytes is left out: it might follow every answer.
                await writer.write(line, _show)
            except UserError as error:
                # A prompt that is too long, or no text, does not end the command.
                typer.echo(f"{error.problem}; {error.remedy}", err=True)
                refused.append(error)
        _show("\n")
    if refused and not sys.stdin.isatty():
        raise UserError(
            refused[0].code,
            f"{len(refused)} of {asked} prompts were refused: {refused[0].problem}",
            refused[0].remedy,
        )


@with_settings
def evaluate(ctx: typer.Context, options: EvaluateOptions, json: Json = False) -> None:
    """Evaluate the model on tasks of lm-eval.

    The scores name the round and the record of the evaluated model. They are kept in the swarm's history
    and shown by `distro-node status`. lm-eval downloads its own tasks from the internet; task files need
    no connection. For example:

    \b
        distro-node evaluate --tasks gpt4all
    """
    import trio

    from ..results.evaluate import EvaluateSettings, evaluate_swarm
    from ..telemetry.task_scores import HELDOUT

    if options.task_names == (HELDOUT,):
        why = f"with --tasks {HELDOUT}"
        refuse_ignored(ctx, why, "leave it out", "fewshot", "chat", "batch_size")
    data = DataDir(options.data_dir)
    settings = EvaluateSettings(
        tasks=options.task_names,
        swarm=only_swarm(options.swarm, data),
        data_dir=data.root,
        selector=options.state,
        limit=options.limit,
        fewshot=options.fewshot,
        chat=options.chat,
        batch_size=options.batch_size,
        device=options.device,
        threads=options.threads,
        seed=options.seed,
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


def _draw(file: Path, swarm: SwarmId, options: GenerateOptions) -> None:
    import trio

    from ..results.image_grid import GridSettings, draw_grid

    settings = GridSettings(
        swarm=swarm,
        data_dir=options.data_dir,
        to=file.absolute(),
        selector=options.state,
        count=options.images,
        steps=options.steps,
        seed=options.seed,
        threads=options.threads,
        device=options.device,
    )
    with stage_display() as progress:
        drawn = trio.run(draw_grid, settings, progress)
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
