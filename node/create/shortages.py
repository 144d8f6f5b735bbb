"""What a founder, or a member with data of its own, is told where there is too little of it."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ExitCode, UserError
from .parts import Parts


def too_short(part: str, length: int) -> UserError:
    return missing(
        f"the {part} text is shorter than one sequence ({length + 1} tokens)",
        "give more text with --data, or a smaller sequence_length in [data]",
    )


def no_images(part: str) -> UserError:
    return missing(
        f"there is no {part} image", "give two different ones at least with --data: one is held out"
    )


def no_conversations(part: str, length: int, parts: Sequence[Parts]) -> UserError:
    long = sum(each.tally.too_long for each in parts)
    if long:
        return missing(
            f"there is no {part} conversation: {long} have no answer that ends within a sequence of "
            f"{length} tokens",
            "give a larger sequence_length in [data], or shorter conversations",
        )
    return missing(
        f"there is no {part} conversation", "give two at least with --data: one of them is held out"
    )


def missing(problem: str, remedy: str) -> UserError:
    return UserError(ExitCode.DATA_MISSING, problem, remedy)
