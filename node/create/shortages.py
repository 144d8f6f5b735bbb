"""Errors (`DATA_MISSING`) for a founder, or a member with data of its own, that has too little data."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ExitCode, UserError
from .summary import SourceSummary
from .token_cache import TokenCache


def too_short(side: str, length: int, sources: Sequence[SourceSummary]) -> UserError:
    left_out = [line for source in sources for line in source.skipped.lines()]
    beside = f"; left out are {'; '.join(left_out)}" if left_out else ""
    return missing(
        f"the {side} text is shorter than one sequence ({length + 1} tokens){beside}",
        "give more text with --data, or a smaller sequence_length in [data]",
    )


def no_images(side: str) -> UserError:
    return missing(
        f"there is no {side} image", "give at least two different ones with --data: one is held out"
    )


def no_texts(side: str) -> UserError:
    return missing(
        f"there is no {side} text with a class",
        "give at least two different ones with --data: one is held out",
    )


def no_conversations(
    side: str, length: int, caches: Sequence[TokenCache], what: str = "conversation"
) -> UserError:
    too_long = sum(each.read_counts.too_long for each in caches)
    if too_long and what == "pair":
        return missing(
            f"there is no {side} pair: in {too_long} of them an answer with its prompt is longer than "
            f"half a sequence of {length} tokens",
            "give a larger sequence_length in [data], or shorter pairs",
        )
    if too_long:
        return missing(
            f"there is no {side} conversation: in {too_long} of them no answer ends within a sequence "
            f"of {length} tokens",
            "give a larger sequence_length in [data], or shorter conversations",
        )
    return _none_read(
        side,
        what,
        caches,
        "if every row is bad, the columns or the chat template are wrong: name the "
        "columns in [data], or another template as chat_template",
    )


def no_prompts(side: str, length: int, completion: int, caches: Sequence[TokenCache]) -> UserError:
    """Return the error for a side without a prompt, if samples of `length` tokens have room for a
    completion of `completion`."""
    too_long = sum(each.read_counts.too_long for each in caches)
    if too_long:
        return missing(
            f"there is no {side} prompt: {too_long} of them do not fit into {length - completion} "
            f"tokens, a sequence of {length} less a completion of {completion}",
            "give a larger sequence_length in [data], a smaller max_new_tokens, or shorter prompts",
        )
    return _none_read(
        side, "prompt", caches, "name the columns with `prompt` and `answer` in [data]"
    )


def _none_read(side: str, what: str, caches: Sequence[TokenCache], remedy: str) -> UserError:
    """Return the error for a side without a `what`, with this remedy if every row is bad."""
    bad = [row for each in caches for row in each.read_counts.bad_rows]
    if bad and not any(each.read_counts.documents for each in caches):
        file, line, problem = bad[0]
        count = sum(each.read_counts.bad for each in caches)
        return missing(
            f"there is no {side} {what}: all {count} rows are bad, the first is {file}, line {line}, "
            f"which {problem}",
            remedy,
        )
    return missing(
        f"there is no {side} {what}", "give at least two with --data: one of them is held out"
    )


def missing(problem: str, remedy: str) -> UserError:
    return UserError(ExitCode.DATA_MISSING, problem, remedy)
