"""`distro-node serve`: serve the model to programs that speak OpenAI's interface."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ExitCode, UserError
from ..settings.components import LogLevel
from ..settings.tree import NEWEST
from ..settings.values import absolute_path
from ..storage.data_dir import DataDir
from ..telemetry.logs import configure_logging
from ..util.standard_streams import announce as announce_line
from .command_settings import ServeOptions
from .options import only_swarm, read_secret
from .settings_parameters import with_settings

if TYPE_CHECKING:
    from ..dashboard.address import Address
    from ..serve.model_source import ModelName, ModelSource

_LINKS = ("swarm-", "distro:")
# Shorter keys can be guessed over a network.
_SHORTEST_KEY = 16


@with_settings
def serve(options: ServeOptions) -> None:
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
    key = None if options.key_file is None else _key_in(options.key_file)
    source = _source(options)
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
        address=options.address,
        encryption=Encryption(
            certificate=options.tls_cert, key=options.tls_key, plain=options.plain
        ),
        token=key,
        most_tokens=options.max_tokens,
        limits=ServiceLimits(
            queue=options.queue, seconds=options.time_limit, memory=options.memory
        ),
    )
    trio.run(run_server, settings, announce)


def _source(options: ServeOptions) -> ModelSource:
    """Return the model to serve: a directory's, or a stored swarm's. Raises `UserError`."""
    from ..serve.model_source import DirectorySource, SwarmSource

    model, selected = options.model, options.state
    if model is not None and not model.strip().lower().startswith(_LINKS):
        directory = absolute_path(Path(model))
        if not model.strip() or not directory.is_dir():
            raise UserError(
                ExitCode.USAGE,
                f"{model!r} is neither a directory nor a link to a swarm",
                "give the directory of an exported model, a swarm-id (swarm-…) or a link (distro:…)",
            )
        if selected != NEWEST:
            raise UserError(
                ExitCode.USAGE,
                "a directory has one state of a model",
                "leave --round and --best out, or name the swarm",
            )
        return DirectorySource(directory=directory, threads=options.threads, device=options.device)
    data = DataDir(options.data_dir)
    return SwarmSource(
        data=data,
        swarm=only_swarm(model, data, "name one"),
        selector=selected,
        threads=options.threads,
        device=options.device,
    )


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
