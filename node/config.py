"""Settings from four sources: command line > environment > configuration file > default.

Typer reads the command line. This module reads the environment (`DISTRO_NODE_<COMMAND>_<OPTION>`,
`DISTRO_NODE_<OPTION>`) and the TOML file into the map of defaults that Typer consults next. It refuses
variables, tables and keys that it does not know, and names the most similar one that it knows.
"""

from __future__ import annotations

import difflib
import math
import os
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import platformdirs
from typer.models import OptionInfo

from .errors import ExitCode, UserError
from .util.regular_files import read_regular

ENVIRONMENT_PREFIX = "DISTRO_NODE"
# Variables that set no option of a command.
_OTHER_VARIABLES = tuple(f"{ENVIRONMENT_PREFIX}_{n}" for n in ("CONFIG", "DEBUG", "PASSPHRASE"))

# No real configuration file is larger; a wrong path (a disk image, /dev/zero) must not fill the memory.
_MAX_CONFIG_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class OptionKind:
    """The value that an option takes."""

    kind: type
    """str, int, float, bool, Path or an Enum."""
    multiple: bool
    """Whether the option takes a list of such values."""
    low: float | None
    """The smallest number allowed; None: any."""
    high: float | None
    """The largest number allowed; None: any."""


Commands = Mapping[str, Mapping[str, OptionKind]]
"""The options of each command, by Python name."""


def default_config_file() -> Path:
    """Return the path of the configuration file in the user's configuration directory."""
    return Path(platformdirs.user_config_dir("distro-node", appauthor=False)) / "config.toml"


def command_options(command: Callable[..., Any]) -> dict[str, OptionKind]:
    """Return the options of a command's function, read from its annotations; positional arguments are
    left out."""
    options = {}
    for name, hint in typing.get_type_hints(command, include_extras=True).items():
        if typing.get_origin(hint) is not Annotated:
            continue
        inner, *metadata = typing.get_args(hint)
        info = next((item for item in metadata if isinstance(item, OptionInfo)), None)
        if info is None:
            continue
        kind, multiple = _kind_of(inner)
        options[name] = OptionKind(kind=kind, multiple=multiple, low=info.min, high=info.max)
    return options


def path_parameters(command: Callable[..., Any]) -> set[str]:
    """Return the names of the options and arguments of a command's function that are paths."""
    hints = typing.get_type_hints(command, include_extras=True).items()
    annotated = {name: hint for name, hint in hints if typing.get_origin(hint) is Annotated}
    return {
        name for name, hint in annotated.items() if _kind_of(typing.get_args(hint)[0])[0] is Path
    }


def _kind_of(hint: Any) -> tuple[Any, bool]:
    """Return the type of a parameter's value, and whether the parameter takes a list of them."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    multiple = typing.get_origin(hint) is list
    return (typing.get_args(hint)[0] if multiple else hint), multiple


def load_defaults(
    file: Path | None, commands: Commands, environment: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Read the configuration file and the environment into defaults by command and option.

    Without `file`, the file at the default path is read if it exists. Raises `UserError` (`BAD_CONFIG`)
    for a file that cannot be read, and for an unknown name or a value that its option does not accept;
    the error names the file and the key, or the variable.
    """
    defaults: dict[str, dict[str, Any]] = {name: {} for name in commands}
    path = file if file is not None else default_config_file()
    try:
        there = file is not None or path.exists()
    except OSError as error:
        raise _bad(f"{path} cannot be read: {error.strerror}") from None
    if there:
        _read_file(path, commands, defaults)
    _read_environment(commands, environment, defaults)
    return defaults


def _read_file(path: Path, commands: Commands, defaults: dict[str, dict[str, Any]]) -> None:
    content = _parse(path)
    all_options = {option for options in commands.values() for option in options}
    tables = {name: value for name, value in content.items() if isinstance(value, dict)}
    common = {name: value for name, value in content.items() if name not in tables}
    for name in tables:
        if name not in commands:
            raise _unknown(path, f"the table [{name}]", name, [*commands])
    for key, value in common.items():
        option = key.replace("-", "_")
        if option not in all_options:
            if key in commands:
                raise _bad(f"{path}: {key!r} is a command; its options follow a line [{key}]")
            raise _unknown(path, f"the key {key!r}", option, [*commands, *all_options])
        for command, options in commands.items():
            if option in options:
                _put(defaults[command], path, key, key, option, value, options[option])
    for name, table in tables.items():
        # A table applies to one command, so it overrides the common keys.
        own: dict[str, Any] = {}
        for key, value in table.items():
            option = key.replace("-", "_")
            if option not in commands[name]:
                raise _unknown(path, f"the key {key!r} in [{name}]", option, [*commands[name]])
            _put(own, path, f"{name}.{key}", key, option, value, commands[name][option])
        defaults[name] |= own


def _put(
    target: dict[str, Any],
    path: Path,
    shown: str,
    key: str,
    option: str,
    value: Any,
    kind: OptionKind,
) -> None:
    if option in target:
        raise _bad(f"{path}: {key!r} occurs twice, once with '-' and once with '_'")
    try:
        target[option] = _check(value, kind)
    except ValueError as error:
        raise _bad(f"{path}: {shown}: {error}") from None


def _parse(path: Path) -> dict[str, Any]:
    if path == Path(os.devnull):
        # The usual way to say: no file.
        return {}
    try:
        data = read_regular(path, _MAX_CONFIG_BYTES)
    except OSError as error:
        raise _bad(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > _MAX_CONFIG_BYTES:
        raise _bad(f"{path} is too large for a configuration file")
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise _bad(f"{path} is not text in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise _bad(f"{path} is not TOML: {error}") from None
    except ValueError:
        raise _bad(f"{path} has a number of too many digits") from None
    except RecursionError:
        raise _bad(f"{path} is nested too deeply") from None


def _read_environment(
    commands: Commands, environment: Mapping[str, str], defaults: dict[str, dict[str, Any]]
) -> None:
    _refuse_windows_line_ends(environment)
    known = set(_OTHER_VARIABLES)
    for command, options in commands.items():
        for option, kind in options.items():
            # Shells allow no hyphen in a variable's name.
            own = command.upper().replace("-", "_")
            names = (option.upper(), f"{own}_{option.upper()}")
            # The variable for this command alone comes last and wins.
            for variable in (f"{ENVIRONMENT_PREFIX}_{name}" for name in names):
                known.add(variable)
                text = environment.get(variable)
                # Shells and containers unset a variable by making it empty.
                if not text:
                    continue
                try:
                    defaults[command][option] = _check(_from_text(text, kind), kind)
                except ValueError as error:
                    raise _bad(f"the environment variable {variable}: {error}") from None

    for variable, text in environment.items():
        if text and variable.startswith(f"{ENVIRONMENT_PREFIX}_") and variable not in known:
            near = difflib.get_close_matches(variable, sorted(known), n=1, cutoff=0.0)[0]
            raise UserError(
                ExitCode.BAD_CONFIG,
                f"the environment variable {variable} is not known; did you mean {near}?",
                "correct it or unset it; `distro-node COMMAND --help` lists the options",
            )


def _refuse_windows_line_ends(environment: Mapping[str, str]) -> None:
    """Raise `UserError` (`BAD_CONFIG`) for a variable from a file with the line ends of Windows: the
    invisible character at its end would make a path or a passphrase another one."""
    for variable, text in environment.items():
        if variable.startswith(f"{ENVIRONMENT_PREFIX}_") and text.endswith("\r"):
            raise UserError(
                ExitCode.BAD_CONFIG,
                f"the environment variable {variable} ends with a carriage return",
                "the file that sets it has the line ends of Windows: convert it, for example with "
                "`sed -i 's/\\r$//' FILE`",
            )


def _from_text(text: str, kind: OptionKind) -> Any:
    if kind.multiple:
        return text.split()
    if kind.kind is bool:
        words = {"1": True, "true": True, "yes": True, "on": True}
        words |= {"0": False, "false": False, "no": False, "off": False}
        # Any other word stays a string, which `_check` refuses.
        return words.get(text.lower(), text)
    if kind.kind in (int, float):
        try:
            return kind.kind(text)
        except ValueError:
            # `_check` refuses a string, and states what it expected.
            return text
    return text


def _check(value: Any, kind: OptionKind) -> Any:
    """Return `value`, of a TOML type. Raises `ValueError` if the option does not accept it."""
    if kind.multiple:
        single = OptionKind(kind=kind.kind, multiple=False, low=kind.low, high=kind.high)
        if not isinstance(value, list):
            raise ValueError(f"expected a list, got {value!r}")
        return [_check(item, single) for item in value]
    expected, words = _expected(kind.kind)
    if type(value) not in expected:
        raise ValueError(f"expected {words}, got {value!r}")
    if kind.kind is Path and not value:
        raise ValueError("an empty path; `.` is the current directory")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {value!r}")
    if issubclass(kind.kind, Enum):
        choices = [member.value for member in kind.kind]
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, got {value!r}")
    if kind.low is not None and value < kind.low:
        raise ValueError(f"must be at least {kind.low:g}, got {value}")
    if kind.high is not None and value > kind.high:
        raise ValueError(f"must be at most {kind.high:g}, got {value}")
    return value


def _expected(kind: type) -> tuple[tuple[type, ...], str]:
    """Return the TOML types that an option's type accepts, and their name in messages."""
    if kind is bool:
        return (bool,), "true or false"
    if kind is int:
        return (int,), "a whole number"
    if kind is float:
        return (int, float), "a number"
    return (str,), "a string"


def _unknown(path: Path, what: str, name: str, known: list[str]) -> UserError:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    return _bad(f"{path}: {what} is not known; did you mean {near.replace('_', '-')!r}?")


def _bad(problem: str) -> UserError:
    return UserError(
        ExitCode.BAD_CONFIG,
        problem,
        "correct it, or use another configuration file with --config; `distro-node COMMAND "
        "--help` lists the options",
    )
