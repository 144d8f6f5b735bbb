"""The groups in which the help of commands with many options lists them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

FIRST = "Options that people use first"
OPTION_GROUPS: dict[str, tuple[str, ...]] = {
    FIRST: (
        *("bootstrap", "device", "memory", "max_upload", "max_download", "active", "polite"),
        *("dashboard", "screen", "data_dir"),
    ),
    "Device and memory": ("split", "threads", "micro_batch", "compile", "sandbox"),
    "Line and disk": (
        *("listen", "announce", "wait", "upnp", "mdns", "max_disk", "mirror"),
        *("relay_updates", "relay_memory"),
    ),
    "Hours and energy": (
        *("price", "currency", "power_limit", "pause_when", "pause_field", "pause_above"),
        *("resume_below", "pause_below", "resume_above", "pause_every"),
    ),
    "Page and metrics": (
        *("dashboard_cert", "dashboard_key", "dashboard_plain", "metrics_addr"),
        *("evaluate_every", "sample_prompt"),
    ),
    "Privacy": ("data", "epsilon", "delta", "clip", "passphrase_file"),
    "Expert": ("stateless", "until_round", "serve_result", "log_format", "log_level"),
}
"""The options by their Python names; a command lists those that it has."""
OTHERS = "Other options"

# A shorter list is read faster without headings.
_FEW = 12


def grouped(options: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """Return the headings of a command's options, each with its options in their own order."""
    if len(options) <= _FEW:
        return [("Options", list(options))]
    groups = []
    rest = list(options)
    for heading, names in OPTION_GROUPS.items():
        found = [each for each in options if each.name in names]
        rest = [each for each in rest if each not in found]
        if found:
            groups.append((heading, found))
    return [*groups, (OTHERS, rest)] if rest else groups


class GroupedCommand(TyperCommand):
    """A command whose help lists many options in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options under their headings."""
        shown = [(each, each.get_help_record(ctx)) for each in self.get_params(ctx)]
        records = {each: record for each, record in shown if record is not None}
        arguments = [each for each in records if each.param_type_name == "argument"]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl([records[each] for each in arguments])
        for heading, options in grouped([each for each in records if each not in arguments]):
            with formatter.section(heading):
                formatter.write_dl([records[each] for each in options])
