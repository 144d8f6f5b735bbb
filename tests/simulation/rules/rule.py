"""What a rule of the protocol is here: the smallest case that it decides, and how it is broken."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from distro_node.protocol.wire.errors import ProtocolError

Patch = tuple[object, str, Any]
"""What to put where: the owner, the attribute, the new value."""


@dataclass(frozen=True)
class Rule:
    """A rule, the case that it decides, and the rule left out or turned round."""

    name: str
    holds: Callable[[], bool]
    patches: Callable[[], list[Patch]]

    def holds_without(self) -> bool:
        """Whether the case comes out right with the rule gone; an error is a wrong end, too."""
        with ExitStack() as stack:
            for owner, name, value in self.patches():
                stack.enter_context(patch.object(owner, name, value))
            try:
                return self.holds()
            except (AssertionError, LookupError, ProtocolError):
                return False


def put(owner: object, name: str, value: Any) -> Callable[[], list[Patch]]:
    """This value in the place of that one: most often a bound that is none any more."""
    return lambda: [(owner, name, value)]


def edited(owner: Any, name: str, *changes: tuple[str, str]) -> Callable[[], list[Patch]]:
    """A function or property with pieces of its source, each of which it has once, replaced.

    Most rules are one condition in a longer function: what is broken is that very condition. When the
    source has no such piece any more, the mutation has to be thought about anew, and says so.
    """

    def patches() -> list[Patch]:
        original = vars(owner)[name]
        function: Any = original.fget if isinstance(original, property) else original
        source = textwrap.dedent(inspect.getsource(function))
        for old, new in changes:
            found = source.count(old)
            assert found == 1, f"{name} has {found} times: {old}"
            source = source.replace(old, new)
        made: dict[str, Any] = {}
        # Annotations are not evaluated there either.
        source = f"from __future__ import annotations\n{source}"
        exec(compile(source, f"<{name}, edited>", "exec"), function.__globals__, made)
        return [(owner, name, made[name])]

    return patches


def together(*several: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    """All of these."""
    return lambda: [one for patches in several for one in patches()]
