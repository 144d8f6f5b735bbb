"""The rules by which the task `grpo` rewards a completion: a reward from 0 to 1, from texts alone.

`exact` compares a completion with the answer, `regex` searches it for one; other rules come with
packages that the owner has installed (entry points of the group `distro_node.checkers`). Patterns come
from strangers, and models write texts that nobody has foreseen, so patterns are searched by RE2, whose
time grows linearly with the text. A time limit would not do: the reward would depend on the machine's
speed. Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from typing import Any

from ...protocol.wire.structure import StructureError
from ..errors import ExitCode, UserError
from ..util.first_line import first_line
from .task_names import GRPO, RewardSettings, built_in_settings, only_entry_point

ENTRY_POINTS = "distro_node.checkers"
"""The group of entry points under which packages offer rules: a function of the texts of prompt,
completion and answer that returns a number from 0 to 1."""

EXACT, REGEX = "exact", "regex"

MAX_PATTERN = 1000
"""Maximum length of a regular expression in characters."""

# Bytes that RE2 may take for a pattern. They bound the time of a search, too: the program of a pattern
# then has at most some 40,000 instructions.
_PATTERN_BYTES = 1 << 20
_SHOWN = 100

Rule = Callable[[str, str, str], float]
"""Return the reward, 0 to 1, of prompt, completion and answer."""


class BadAnswer(Exception):
    """An answer that the rule cannot use. The message gives the reason: it ends a sentence that begins
    with "the row"."""


class RewardRule:
    """The rule of a swarm's settings. A package that provides it is loaded at the first reward.

    Raises `UserError`: `NO_TASK` if a package that it needs is not installed, `MANIFEST` for an
    `extract` that is no regular expression with a group.
    """

    def __init__(self, settings: RewardSettings) -> None:
        _require(settings)
        self.name = settings.checker
        """The name of the checker."""
        self._extract = None if settings.extract is None else _group(settings.extract)
        self._rule: Rule | None = {EXACT: self._equal, REGEX: _found}.get(self.name)

    def check_answer(self, answer: str) -> None:
        """Raise `BadAnswer` if no completion could be compared with this answer, or if an empty one
        would be rewarded: that teaches a model to write nothing, or anything."""
        empty_matches = self.name == EXACT and not answer.strip()
        if self.name == REGEX:
            try:
                empty_matches = compile_pattern(answer).search("") is not None
            except ValueError as error:
                raise BadAnswer(f"has an answer that is no regular expression: {error}") from None
        if empty_matches:
            raise BadAnswer(
                f"has the answer {answer[:_SHOWN]!r}, which an empty completion matches"
            )

    def reward(self, prompt: str, completion: str, answer: str) -> float:
        """Return the reward of a completion, from 0 to 1. Raises `ValueError` if the rule fails, and
        `UserError` (`NO_TASK`) if its package cannot be loaded."""
        if self._rule is None:
            self._rule = _load(self.name)
        try:
            value = float(self._rule(prompt, completion, answer))
        # A rule may be third-party code, of the owner's choice, and raise anything.
        except Exception as error:
            raise ValueError(
                f"the checker {self.name!r} failed: {first_line(error, _SHOWN)}"
            ) from error
        if not (math.isfinite(value) and 0.0 <= value <= 1.0):
            raise ValueError(
                f"the checker {self.name!r} returned {value}, not a number from 0 to 1"
            )
        return value

    def _equal(self, prompt: str, completion: str, answer: str) -> float:
        del prompt
        if self._extract is not None:
            match = self._extract.search(completion)
            completion = (match.group(1) or "") if match is not None else ""
            if match is None:
                return 0.0
        return float(completion.strip() == answer.strip())


def require_rule(task: str, settings: dict[str, Any] | None) -> None:
    """Raise `UserError` (`NO_TASK`) unless the rule of a task that rewards by one is built in or
    installed. Nothing is loaded; the settings are a stranger's, and the trainer refuses invalid ones."""
    try:
        found = built_in_settings(task, settings) if task == GRPO else None
    except StructureError:
        return
    if isinstance(found, RewardSettings):
        _require(found)


def compile_pattern(pattern: str) -> Any:
    """Return a compiled regular expression. Raises `ValueError` with the reason why it cannot be used,
    and `UserError` (`NO_TASK`) if RE2 is not installed."""
    re2 = _import_re2()
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"it has more than {MAX_PATTERN} characters")
    options = re2.Options()
    options.max_mem = _PATTERN_BYTES
    # By default RE2 prints its errors, too.
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        said = error.args[0] if error.args else "it cannot be compiled"
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        raise ValueError(text[:_SHOWN]) from None
    except UnicodeEncodeError:
        raise ValueError("it is not Unicode text") from None


def _found(prompt: str, completion: str, answer: str) -> float:
    del prompt
    return float(compile_pattern(answer).search(completion) is not None)


def _group(pattern: str) -> Any:
    try:
        compiled = compile_pattern(pattern)
    except ValueError as error:
        raise _bad_extract(f"is no regular expression: {error}") from None
    if compiled.groups < 1:
        raise _bad_extract("has no group; put what is compared with the answer in parentheses")
    return compiled


def _bad_extract(problem: str) -> UserError:
    return UserError(
        ExitCode.MANIFEST,
        f"task_settings.extract: {problem}",
        "write it in RE2's syntax (docs/tasks.md), which has no look-around and no back-references",
    )


def _require(settings: RewardSettings) -> None:
    name = settings.checker
    if (name == REGEX or settings.extract is not None) and find_spec("re2") is None:
        raise _no_re2()
    if name not in (EXACT, REGEX):
        _entry_point(name)


def _entry_point(name: str) -> EntryPoint:
    found = only_entry_point(ENTRY_POINTS, "checker", name)
    if found is None:
        raise UserError(
            ExitCode.NO_TASK,
            f"the swarm rewards by the checker {name!r}, which is not installed here",
            f"install the package that provides it, from a source that you trust; built in are {EXACT} "
            f"and {REGEX}",
        )
    return found


def _load(name: str) -> Rule:
    try:
        return _entry_point(name).load()
    except UserError:
        raise
    # Third-party code.
    except Exception as error:
        raise UserError(
            ExitCode.NO_TASK,
            f"the package that provides the checker {name!r} cannot be loaded: "
            f"{first_line(error, _SHOWN)}",
            "mend or update that package",
        ) from error


def _import_re2() -> Any:
    try:
        # An extra: only swarms that reward by a regular expression need it.
        import re2  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise _no_re2() from None
    return re2


def _no_re2() -> UserError:
    return UserError(
        ExitCode.NO_TASK,
        "the swarm rewards by a regular expression, and the package google-re2 is not installed here",
        "install it with: pip install 'distro-node[train,rewards]'",
    )
