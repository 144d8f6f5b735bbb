"""Errors for the user, each with one line, a remedy and an exit code.

docs/exit-codes.md has an entry for every code; a test keeps the two in step.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of all commands. 1 (a bug of ours) and 2 (usage) follow the common convention."""

    OK = 0
    BUG = 1
    USAGE = 2
    DEMO_FAILED = 3
    BAD_SWARM_ID = 10
    UNKNOWN_SWARM = 11
    NO_BOOTSTRAP = 12
    PORT_IN_USE = 13
    BAD_ADDRESS = 14
    NO_TICKET = 15
    MEMBERS_UNREACHABLE = 16
    LARGE_PACKETS_LOST = 17
    NOT_SERVED = 18
    NO_DESCRIPTION = 19
    KEYSTORE = 20
    WRONG_PASSPHRASE = 21
    DATA_DIR_LOCKED = 22
    DISK_FULL = 23
    DATA_DIR = 24
    EXPELLED = 25
    FINAL = 26
    NOT_JOINED = 27
    MANIFEST = 30
    DATA_MISSING = 31
    VERSION = 32
    BAD_CONFIG = 33
    NO_DEVICE = 40
    MODEL_TOO_LARGE = 41
    TRAINER = 42
    NO_TASK = 43
    PRIVACY = 44
    OTHER_MODEL = 45
    NOT_RUNNING = 50
    NOTHING_TO_EXPORT = 51
    NOT_WRITABLE = 52
    NOT_THE_SWARMS = 53
    HUB = 54
    EVALUATION = 55
    SERVICE = 56
    UNFIT = 57
    UNANCHORED = 58
    FALSE_RECEIPT = 59
    ADDRESS_MISSING = 60
    SYSTEM_LIMIT = 61
    PARTLY_VERIFIED = 62
    NO_GGUF = 63
    MODEL_FILES = 64
    UNSUPPORTED = 65
    NO_INDEX = 66
    INTERRUPTED = 130


class UserError(Exception):
    """An error that the user can fix. Shown as `error: {problem}` and `  {remedy}`, never as a
    traceback.

    `problem` names the fault and the value that has it; `remedy` says what to do.
    """

    def __init__(self, code: ExitCode, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.code = code
        self.problem = problem
        self.remedy = remedy


def address_missing(problem: str) -> UserError:
    """Return the error for serving at an address that this machine does not have (yet)."""
    return UserError(
        ExitCode.ADDRESS_MISSING,
        f"{problem}: this machine has no such address",
        "check its spelling, and whether the VPN or interface is up; with --wait the node waits "
        "for it",
    )


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the single exceptions in an exception group and its nested groups; an `error` that is no
    group is yielded itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
