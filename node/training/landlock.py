"""Restriction of a process's file access by Landlock: it is refused except beneath the named paths.

The numbers are those of the kernel's include/uapi/linux/landlock.h.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_FIRST_VERSION = (1 << 13) - 1
_FOR_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_SCOPED = 0b11
"""Scopes: no signals to processes outside the sandbox, and no access to their abstract sockets."""

READ = _READ_FILE | _READ_DIR
RUN = READ | _EXECUTE
DEVICE = _READ_FILE | _WRITE_FILE | _TRUNCATE
# Links, pipes, sockets and device nodes may not be made: they could harm other programs.
WRITE = READ | _WRITE_FILE | _TRUNCATE | _REFER | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG

SCOPES_SIGNALS = 6
"""The first version that can prevent a process from sending signals to others."""


def version(library: ctypes.CDLL) -> int:
    """Return the kernel's version of Landlock; 0 or less if it is missing or switched off."""
    return library.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)


def restrict_files(library: ctypes.CDLL, rules: Iterable[tuple[Path, int]]) -> bool:
    """Restrict this process and its future children to the rights on files that `rules` name.

    Paths that do not exist are skipped. Returns whether the kernel enforces the restriction.
    """
    known = version(library)
    if known < 1:
        return False
    handled = _FIRST_VERSION
    handled |= _REFER if known >= 2 else 0
    handled |= _TRUNCATE if known >= 3 else 0
    attributes = struct.pack("<QQQ", handled, 0, _SCOPED if known >= SCOPES_SIGNALS else 0)
    # Older kernels know only the first fields, and reject longer attributes.
    attributes = attributes[: 24 if known >= SCOPES_SIGNALS else 16 if known >= 4 else 8]
    size = ctypes.c_size_t(len(attributes))
    ruleset = library.syscall(_CREATE_RULESET, attributes, size, 0)
    if ruleset < 0:
        return False
    try:
        for path, rights in rules:
            _allow(library, ruleset, path, rights & handled)
        return library.syscall(_RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _allow(library: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rights = rights if path.is_dir() else rights & _FOR_FILES
        beneath = struct.pack("<Qi", rights, handle)
        library.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, beneath, 0)
    finally:
        os.close(handle)
