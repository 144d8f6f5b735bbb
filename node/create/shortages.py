"""Errors (`DATA_MISSING`) for a founder, or a member with data of its own, that has too little data."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ExitCode, UserError
from .token_cache import TokenCache


def too_short(part: str, length: int) -> UserError:
    return missing(
        f"the {part} text is shorter than one sequence ({length + 1} tokens)",
        "give more text with --data, or a smaller sequence_length in [data]",
    )


def no_images(part: str) -> UserError:
    return missing(
        f"there is no {part} image", "give at least two different ones with --data: one is held out"
    )


def no_conversations(part: str, length: int, parts: Sequence[TokenCache]) -> UserError:
    long = sum(each.read_counts.too_long for each in parts)
    if long:
        return missing(
            f"there is no {part} conversation: in {long} of them no answer ends within a sequence of "
            f"{length} tokens",
            "give a larger sequence_length in [data], or shorter conversations",
        )
    bad = [row for each in parts for row in each.read_counts.bad_rows]
    if bad and not any(each.read_counts.documents for each in parts):
        file, line, problem = bad[0]
        many = sum(each.read_counts.bad for each in parts)
        return missing(
            f"there is no {part} conversation: all {many} rows are bad, the first is {file}, line "
            f"{line}, which {problem}",
            "if every row is bad, the columns or the chat template are wrong: name the "
            "columns in [data], or another template as chat_template",
        )
    return missing(
        f"there is no {part} conversation", "give at least two with --data: one of them is held out"
    )


def missing(problem: str, remedy: str) -> UserError:
    return UserError(ExitCode.DATA_MISSING, problem, remedy)
