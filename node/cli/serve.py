"""`distro-node serve`: serve the model to programs that speak OpenAI's interface."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ExitCode, UserError
from ..settings.components import LogLevel, TrainerSettings
from ..settings.values import (
    DEFAULT_MODEL_ADDRESS,
    address_text,
    parse_device,
    parse_model_address,
    parse_size,
)
from ..storage.data_dir import DataDir
from ..telemetry.logs import configure_logging
from ..util.standard_streams import announce as announce_line
from .options import (
    BestState,
    DataDirectory,
    RoundState,
    data_directory,
    only_swarm,
    read_secret,
    state_selector,
)
from .settings_parameters import option_of

if TYPE_CHECKING:
    from ..dashboard.address import Address
    from ..serve.model_source import ModelName, ModelSource

_LINKS = ("swarm-", "distro:")
# Shorter keys can be guessed over a network.
_SHORTEST_KEY = 16


def serve(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="SWARM|DIRECTORY",
            help="The swarm-id, a link to the swarm, or the directory of an exported model. [default: "
            "the only swarm that this node knows]",
        ),
    ] = None,
    address: Annotated[
        str,
        typer.Option("--address", metavar="HOST:PORT", help="Where the model is served."),
    ] = address_text(DEFAULT_MODEL_ADDRESS),
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--key-file",
            metavar="FILE",
            readable=False,
            help="A file whose first line is the key that programs have to send. [default: none at a "
            "loopback address, elsewhere a new one each time]",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert",
            metavar="FILE",
            readable=False,
            help="A certificate (PEM), to serve over TLS: needed at an address that others reach.",
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            "--tls-key", metavar="FILE", readable=False, help="The certificate's key (PEM)."
        ),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Serve without TLS even at an address that others can reach."),
    ] = False,
    round: RoundState = None,
    best: BestState = False,
    max_tokens: Annotated[
        int,
        typer.Option(
            "--max-tokens",
            metavar="N",
            min=1,
            max=1 << 20,
            help="The most tokens of an answer, whatever a program asks for.",
        ),
    ] = 512,
    time_limit: Annotated[
        float,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            min=1,
            max=86_400,
            help="How long an answer may be written; then it ends as it is.",
        ),
    ] = 300,
    queue: Annotated[
        int,
        typer.Option(
            "--queue",
            metavar="N",
            min=0,
            max=64,
            help="Requests that wait while one is answered; more are refused.",
        ),
    ] = 8,
    memory: Annotated[
        str,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="The most main memory that an answer may take beside the model.",
        ),
    ] = "2GB",
    threads: Annotated[int, option_of(TrainerSettings, "threads", help="CPU threads to use.")] = 1,
    device: Annotated[
        str, option_of(TrainerSettings, "device", help="What to compute on, as with `join`.")
    ] = "cpu",
    data_dir: DataDirectory = None,
) -> None:
    """Serve the model to programs that speak OpenAI's interface.

    Answers `/v1/chat/completions` (of a model with a chat template), `/v1/completions` and `/v1/models`,
    with streaming, in a process of its own with a low priority: a node that trains goes on. Takes the
    newest state that this node has, goes over to newer ones as the node stores them, and says in each
    answer which round it is from. Ctrl-C ends it. For example:

    \b
        distro-node serve
        curl http://127.0.0.1:9467/v1/completions -H 'Content-Type: application/json' \\
            -d '{"model": "swarm-…", "prompt": "Once upon"}'
    """
    place = parse_model_address(address)
    key = None if key_file is None else _key_in(key_file)
    most = parse_size(memory)
    data = data_directory(data_dir)
    source = _source(model, data, round, best, threads, parse_device(device))
    import trio

    from ..dashboard.address import Encryption
    from ..serve.server import ServeSettings, run_server
    from ..serve.text_service import ServiceLimits

    configure_logging(level=LogLevel.INFO)

    def announce(served: Address, name: ModelName) -> None:
        announce_line(f"Serving {name.full} at {served.url}v1")
        if not served.guard.free_reading and key is None:
            announce_line(f"  key: {served.guard.token}")

    settings = ServeSettings(
        source=source,
        address=place,
        encryption=Encryption(certificate=tls_cert, key=tls_key, plain=plain),
        token=key,
        most_tokens=max_tokens,
        limits=ServiceLimits(queue=queue, seconds=time_limit, memory=most),
    )
    trio.run(run_server, settings, announce)


def _source(
    model: str | None,
    data: DataDir,
    round_: int | None,
    best: bool,
    threads: int,
    device: str,
) -> ModelSource:
    selected = state_selector(round_, best)
    from ..serve.model_source import DirectorySource, SwarmSource

    if model is not None and not model.strip().lower().startswith(_LINKS):
        directory = Path(model).expanduser().absolute()
        if not model.strip() or not directory.is_dir():
            raise UserError(
                ExitCode.USAGE,
                f"{model!r} is neither a directory nor a link to a swarm",
                "give the directory of an exported model, a swarm-id (swarm-…) or a link (distro:…)",
            )
        if best or round_ is not None:
            raise UserError(
                ExitCode.USAGE,
                "a directory has one state of a model",
                "leave --round and --best out, or name the swarm",
            )
        return DirectorySource(directory=directory, threads=threads, device=device)
    swarm = only_swarm(model, data, "name one")
    return SwarmSource(data=data, swarm=swarm, selector=selected, threads=threads, device=device)


def _key_in(file: Path) -> str:
    key = read_secret(file, "key", "--key-file", ExitCode.USAGE)
    if len(key) < _SHORTEST_KEY or not all("!" <= character <= "~" for character in key):
        raise UserError(
            ExitCode.USAGE,
            f"the key in {file} cannot be used",
            f"take at least {_SHORTEST_KEY} letters, digits and signs without blanks, such as what "
            "`openssl rand -hex 32` prints",
        )
    return key
