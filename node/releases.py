"""Releases of distro-node on a package index, and how this installation gets a newer one.

A release says in its metadata which protocol version it speaks: the keyword `protocol-version-N` of
pyproject.toml, which an index repeats in its JSON. So a node learns whether a release suits a swarm
before anybody installs it. Nothing here installs or changes anything.
"""

from __future__ import annotations

import json
import platform
import re
import shlex
import sys
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from urllib.request import url2pathname

import trio
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from .. import __version__
from .errors import ExitCode, UserError
from .network.web import AddressScope, Web, WebError

INDEX = "https://pypi.org/pypi"
"""The index that is asked: PyPI's JSON interface, without the package's name."""

PACKAGE = "distro-node"
_SECONDS = 10.0
# PyPI's answer has some kilobytes a release.
_MAX_BYTES = 4 << 20
# Of a version, or of the Python versions that a release needs.
_MAX_CHARACTERS = 100
_PROTOCOL = re.compile(r"(?<![\w-])protocol-version-(\d{1,9})(?![\w-])")
# The command that made an environment leaves a file of this name in it.
_TOOLS = {"pipx_metadata.json": "pipx", "uv-receipt.toml": "uv tool"}


@dataclass(frozen=True, kw_only=True)
class Release:
    """One release on the index."""

    version: Version
    protocol: int | None
    """The highest protocol version that it speaks; None: its metadata does not say."""

    @property
    def is_newer(self) -> bool:
        """Whether it is newer than this program."""
        return self.version > Version(__version__)


async def newest_release(index: str = INDEX) -> Release:
    """Return the newest release that this Python can run. Raises `UserError` (`NO_INDEX`) if the index
    does not answer within ten seconds, or has no such release."""
    web, base = Web(AddressScope.AS_NAMED), index.rstrip("/")
    if not base.startswith(("https://", "http://")):
        raise UserError(
            ExitCode.USAGE,
            f"the index {index} is not a web address",
            f"give the address of a JSON interface such as {INDEX}",
        )
    try:
        with trio.fail_after(_SECONDS):
            about = await _fetch(web, f"{base}/{PACKAGE}/json")
            version = _newest(about)
            if version is not None and str(version) != str(_parsed(_info(about, "version"))):
                about = await _fetch(web, f"{base}/{PACKAGE}/{version}/json")
    except (WebError, trio.TooSlowError) as error:
        if isinstance(error, WebError) and error.status == 404:
            raise UserError(
                ExitCode.NO_INDEX,
                f"the package index {index} has no release of {PACKAGE}",
                "update as you installed it (a checkout: `git pull`), or name another index with "
                "--index; your node needs no index to run",
            ) from None
        reason = "no answer within 10 s" if isinstance(error, trio.TooSlowError) else str(error)
        raise UserError(
            ExitCode.NO_INDEX,
            f"the package index {index} cannot be asked: {reason}",
            "check the connection, or name another one with --index; your node needs no index to run",
        ) from None
    if version is None:
        raise UserError(
            ExitCode.NO_INDEX,
            f"the package index {index} has no release for Python {platform.python_version()}",
            "install a newer Python, or name another index with --index",
        )
    spoken = _PROTOCOL.search(_info(about, "keywords"))
    return Release(version=version, protocol=None if spoken is None else int(spoken[1]))


def update_command() -> str:
    """Return the command that updates this installation, as far as its files tell how it was made."""
    found = _distribution()
    what = f"'{PACKAGE}[train]'" if find_spec("torch") is not None else PACKAGE
    for name, tool in _TOOLS.items():
        if (Path(sys.prefix) / name).is_file():
            # `upgrade` would install the same file or checkout again.
            is_from_index = found is None or not found.read_text("direct_url.json")
            return (
                f"{tool} upgrade {PACKAGE}" if is_from_index else f"{tool} install --force {what}"
            )
    made_by = "" if found is None else (found.read_text("INSTALLER") or "").strip()
    if made_by == "dpkg":
        return f"make deb && sudo apt install ./dist/{PACKAGE}-bootstrap_*.deb, in a newer checkout"
    checkout = None if found is None else _checkout(found)
    if checkout is not None:
        folder = shlex.quote(checkout)
        return f"git -C {folder} pull && make -C {folder} install"
    python = shlex.quote(sys.executable)
    if made_by == "uv":
        return f"uv pip install --python {python} --upgrade {what}"
    return f"{python} -m pip install --upgrade {what}"


async def _fetch(web: Web, url: str) -> dict[str, Any]:
    try:
        answer = json.loads(await web.get(url, _MAX_BYTES))
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or not isinstance(answer.get("info"), dict):
        raise WebError("its answer is not that of a package index")
    return answer


def _newest(about: dict[str, Any]) -> Version | None:
    """Return the newest release that is no preview, has a file that was not withdrawn, and runs on this
    Python."""
    releases = about.get("releases")
    usable = []
    for text, files in releases.items() if isinstance(releases, dict) else ():
        version = _parsed(text)
        if version is not None and not version.is_prerelease and _is_usable(files):
            usable.append(version)
    return max(usable, default=None)


def _is_usable(files: object) -> bool:
    return isinstance(files, list) and any(
        isinstance(each, dict)
        and not each.get("yanked")
        and _runs_here(each.get("requires_python"))
        for each in files
    )


def _runs_here(required: object) -> bool:
    text = str(required or "")
    try:
        return len(text) <= _MAX_CHARACTERS and SpecifierSet(text, prereleases=True).contains(
            platform.python_version()
        )
    except ValueError:
        return False


def _parsed(text: str) -> Version | None:
    try:
        return Version(text) if len(text) <= _MAX_CHARACTERS else None
    except ValueError:
        return None


def _info(about: dict[str, Any], name: Literal["keywords", "version"]) -> str:
    value = about["info"].get(name)
    return value if isinstance(value, str) else ""


def _distribution() -> Distribution | None:
    try:
        return Distribution.from_name(PACKAGE)
    except PackageNotFoundError:
        return None


def _checkout(found: Distribution) -> str | None:
    """Return the folder of the checkout that this program runs from; None: it is a copy."""
    try:
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        is_editable = origin["dir_info"]["editable"] is True
        # An installer writes the folder as a web address: a blank in it is `%20`.
        return url2pathname(urlsplit(origin["url"]).path) if is_editable else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
