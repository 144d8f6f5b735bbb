"""`distro-node dashboard`: open the local node's page in a browser."""

from __future__ import annotations

from json import dumps
from typing import Annotated

import typer

from ..errors import ExitCode, UserError
from .options import DataDirectory, Json, data_directory

_TIMEOUT_SECONDS = 10.0


def dashboard(
    data_dir: DataDirectory = None,
    open: Annotated[
        bool,
        typer.Option(
            "--open/--no-open", help="Open the page in a browser, or print the link only."
        ),
    ] = True,
    json: Json = False,
) -> None:
    """Show the page of the node that runs here.

    Opens it in your browser, to look. The link that is printed also lets you act (pause, resume,
    leave, set limits and hours): it holds for as long as the node runs; give it to nobody. For example:

    \b
        distro-node dashboard
    """
    from ..control.command_socket import ask

    data = data_directory(data_dir)
    answer = ask(data.socket, "dashboard", _TIMEOUT_SECONDS)
    url, link = answer.get("url"), answer.get("link")
    if not isinstance(url, str):
        raise UserError(
            ExitCode.NOT_RUNNING,
            f"the node in {data.root} serves no page",
            "start it again: `distro-node join` serves one unless `--dashboard off` is given, and "
            "`distro-node bootstrap` with `--observe`",
        )
    if json:
        typer.echo(dumps({"url": url, "link": link}))
        return
    typer.echo(f"To look: {url}")
    # The page at a bootstrap peer is read-only.
    if isinstance(link, str):
        typer.echo(f"To act, too: {link}")
    if open:
        import webbrowser

        # Without the token: all users of the machine can see a program's arguments.
        webbrowser.open(url)
