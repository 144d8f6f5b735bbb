"""The sources of settings, their precedence, and the messages about invalid ones."""

from __future__ import annotations

import contextlib
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from distro_node.node.cli.main import COMMANDS
from distro_node.node.config import command_options, load_defaults
from distro_node.node.errors import ExitCode, UserError
from hypothesis import given
from hypothesis import strategies as st

OPTIONS = {name: command_options(command) for name, command in COMMANDS.items()}


def defaults(tmp_path: Path, text: str | bytes, **environment: str) -> dict[str, dict[str, Any]]:
    file = tmp_path / "config.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_defaults(file, OPTIONS, environment)


def test_a_table_holds_for_its_command_and_keys_above_for_all(tmp_path: Path) -> None:
    found = defaults(
        tmp_path,
        """
        data-dir = "/data"
        log-level = "warning"
        [join]
        log_level = "debug"
        bootstrap = ["/a", "/b"]
        threads = 2
        screen = false
        """,
    )
    assert found["join"] == {
        "data_dir": "/data",
        "log_level": "debug",
        "bootstrap": ["/a", "/b"],
        "threads": 2,
        "screen": False,
    }
    assert found["bootstrap"] == {"data_dir": "/data", "log_level": "warning"}
    assert found["id"] == {"data_dir": "/data"}
    assert found["demo"] == {}


def test_the_environment_stands_above_the_file(tmp_path: Path) -> None:
    text = 'data-dir = "/file"\n[join]\nthreads = 1\nmicro-batch = 1\ndevice = "cpu"'
    found = defaults(
        tmp_path,
        text,
        DISTRO_NODE_DATA_DIR="/all",
        DISTRO_NODE_STATUS_DATA_DIR="/status",
        DISTRO_NODE_JOIN_THREADS="2",
        DISTRO_NODE_BOOTSTRAP="/a /b",
        DISTRO_NODE_JSON="yes",
        DISTRO_NODE_JOIN_SCREEN="off",
        DISTRO_NODE_JOIN_DEVICE="",
    )
    assert found["join"] == {
        "data_dir": "/all",
        "threads": 2,
        "micro_batch": 1,
        "device": "cpu",
        "bootstrap": ["/a", "/b"],
        "screen": False,
    }
    assert found["status"] == {"data_dir": "/status", "json": True}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[jion]", ["the table [jion]", "'join'"]),
        ("dat-dir = 'x'", ["'dat-dir'", "'data-dir'"]),
        ("join = 3", ["'join' is a command; its options follow a line [join]"]),
        ("[[join]]\nthreads = 1", ["'join' is a command; its options follow a line [join]"]),
        ("[join]\nthread = 1", ["'thread' in [join]", "'threads'"]),
        ("[join]\nthreads = 'two'", ["join.threads", "a whole number", "'two'"]),
        ("[join]\nthreads = 1.5", ["join.threads", "a whole number"]),
        ("[join]\nthreads = true", ["join.threads", "a whole number"]),
        ("[join]\nthreads = 0", ["join.threads", "at least 1"]),
        ("[join]\nthreads = 9999999", ["join.threads", "at most"]),
        ("[join]\nscreen = 'no'", ["join.screen", "true or false"]),
        ("[join]\nbootstrap = '/a'", ["join.bootstrap", "a list"]),
        ("[join]\nbootstrap = [1]", ["join.bootstrap", "a string"]),
        ("[join]\nlog-format = 'xml'", ["join.log-format", "text, json"]),
        ("log-level = 'loud'", ["log-level", "debug, info"]),
        ("[join]\ndata-dir = ''", ["join.data-dir", "an empty path"]),
        ("[join]\ndata-dir = '/a'\ndata_dir = '/b'", ["twice"]),
        ("data-dir = '/a'\ndata_dir = '/b'", ["twice"]),
        ("[join\n", ["not TOML", "line 1"]),
        (b"\xff", ["not text in UTF-8"]),
        (b"a=" + b"[" * 5000, ["nested too deeply"]),
        (b"a=" + b"9" * 5000, ["too many digits"]),
        (b"#" * ((1 << 20) + 1), ["too large"]),
    ],
)
def test_a_mistake_in_the_file_is_named(
    tmp_path: Path, text: str | bytes, words: list[str]
) -> None:
    with pytest.raises(UserError) as caught:
        defaults(tmp_path, text)
    assert caught.value.code == ExitCode.BAD_CONFIG
    for word in [str(tmp_path / "config.toml"), *words]:
        assert word in caught.value.problem


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    assert defaults(tmp_path, b'\xef\xbb\xbfdevice = "cpu"')["join"]["device"] == "cpu"


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("DISTRO_NODE_THREADS", "two", "expected a whole number, got 'two'"),
        ("DISTRO_NODE_JOIN_THREADS", "0", "at least 1"),
        ("DISTRO_NODE_JOIN_SCREEN", "maybe", "true or false"),
        ("DISTRO_NODE_JOIN_PAUSE_EVERY", "often", "expected a number, got 'often'"),
        ("DISTRO_NODE_JOIN_CLIP", "nan", "expected a finite number"),
        ("DISTRO_NODE_LOG_FORMAT", "xml", "text, json"),
        ("DISTRO_NODE_DEVIC", "cpu", "did you mean DISTRO_NODE_DEVICE?"),
        ("DISTRO_NODE_STATUS_DEVICE", "cpu", "is not known"),
        # A file with the line ends of Windows, read by a shell.
        ("DISTRO_NODE_DATA_DIR", "/data\r", "ends with a carriage return"),
        ("DISTRO_NODE_PASSPHRASE", "secret\r", "ends with a carriage return"),
    ],
)
def test_a_mistake_in_the_environment_is_named(
    tmp_path: Path, variable: str, value: str, words: str
) -> None:
    with pytest.raises(UserError) as caught:
        defaults(tmp_path, "", **{variable: value})
    assert caught.value.code == ExitCode.BAD_CONFIG
    assert variable in caught.value.problem
    assert words in caught.value.problem


def test_a_file_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load_defaults(tmp_path / "none.toml", OPTIONS, {})
    with pytest.raises(UserError, match="cannot be read"):
        load_defaults(tmp_path, OPTIONS, {})


@given(
    st.lists(
        st.sampled_from(["[join]", "[", "]", "=", "\n", "threads", "data-dir", "'a'", "1", "{}"])
        | st.text(max_size=5)
    ).map(" ".join)
)
def test_any_file_is_settings_or_the_one_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    # Any exception other than the expected error fails the test.
    with contextlib.suppress(UserError):
        assert defaults(tmp_path_factory.mktemp("c"), text).keys() == OPTIONS.keys()


def test_every_option_takes_a_value_from_a_file(tmp_path: Path) -> None:
    examples = {bool: "true", str: "'x'", Path: "'x'", float: "1.5"}
    for command, options in OPTIONS.items():
        for name, kind in options.items():
            plain = examples.get(kind.kind, "")
            if issubclass(kind.kind, Enum):
                plain = f"'{next(iter(kind.kind)).value}'"
            if kind.kind is int:
                plain = str(int(kind.low or 0))
            elif kind.kind is float and kind.low is not None:
                plain = str(kind.low + 0.5)
            value = f"[{plain}]" if kind.multiple else plain
            found = defaults(tmp_path, f"[{command}]\n{name.replace('_', '-')} = {value}")
            assert name in found[command]
