"""No bound without a proof: of each number in the protocol that limits what others may cost, something
here or in another test fails when it is gone."""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from distro_node import protocol
from simulation.rules import RULES

FOLDERS = ("chain", "checks", "member", "wire")

# Those that no rule simply puts another number in the place of: which rule looks at the line that uses
# it, or which test at what it brings about.
SHOWN_BY = {
    "chain/panels._MOST_STRIKES": (
        "chain/test_panels.py::test_each_strike_keeps_away_for_twice_as_long_up_to_a_bound"
    ),
    "chain/panels._NEW_TERMS": (
        "chain/test_panels.py::test_who_is_new_waits_and_who_is_back_waits_no_less_than_before"
    ),
    "chain/keeping._LOOKED_BACK": (
        "chain/test_keeping.py"
        "::test_where_work_is_checked_every_state_of_some_rounds_back_can_be_made"
    ),
    "checks/agreement._LARGEST": (
        "checks/test_agreement.py::test_one_number_has_no_more_say_than_its_bound"
    ),
    "checks/agreement._WIDEST": (
        "checks/test_agreement.py::test_one_number_has_no_more_say_than_its_bound"
    ),
    "checks/contributions._APART": (
        "checks/test_contributions.py::test_it_comes_out_the_same_in_whatever_parts_it_is_kept"
    ),
    "checks/merkle.MOST_STEPS": (
        "checks/test_merkle.py::test_a_claim_costs_no_more_than_the_longest_proof"
    ),
    "checks/sequential._MOST_CHECKS": (
        "checks/test_sequential.py::test_decided_standings_and_endless_courses_are_refused"
    ),
    "checks/sequential._MOST_SUMS": (
        "checks/test_sequential.py::test_decided_standings_and_endless_courses_are_refused"
    ),
    "checks/standing._LEAST_SCATTER": (
        "checks/test_standing.py::test_halves_scatter_less_than_scores_but_never_hardly_at_all"
    ),
    "member/member._SHEETS_SHARE": (
        "member/test_panels.py::test_sheets_are_waited_for_half_as_long_as_updates"
    ),
    "member/hiding._WHOLE_SLOTS": (
        "member/test_panels.py"
        "::test_it_votes_for_no_record_that_leaves_out_a_tally_which_it_heard_in_time"
    ),
    "member/hiding._IN_TIME": (
        "member/test_panels.py"
        "::test_it_votes_for_no_record_that_leaves_out_a_tally_which_it_heard_in_time"
    ),
    "wire/work_specs._MOST_SHEET_BYTES": (
        "chain/test_speaking.py::test_a_sheet_has_to_fit_into_one_blob"
    ),
    "member/noting._NAMED": (
        "member/test_noting.py::test_of_a_crowd_that_gets_votes_nobody_else_is_named"
    ),
    "wire/messages.MAX_SEQUENCES": "wire/test_messages.py::test_fields_have_bounds",
    "chain/catching_up._MOST_ROUNDS": "the goal is bounded",
    "chain/catching_up._PORTION": "so many entries are asked for",
    "chain/fork.COMPARED_ROUNDS": "so many rounds are compared",
    "chain/replaying.KEPT_ROUNDS": "updates are kept for some rounds more",
    "member/parting.LOOK_SECONDS": "member/test_parting.py::test_who_looks_on_has_time_for_a_look",
    "member/parting._LOOKED_SECONDS": "member/test_parting.py::test_who_follows_gets_the_next_record",
    "member/parting._FETCHED_SECONDS": "member/test_parting.py::test_a_chunk_that_is_under_way_is_sent",
    "member/parting._LONGEST_SECONDS": "member/test_parting.py::test_nobody_is_kept_for_ever",
    "member/own_words.FORGET_ROUNDS": "own words go now and then",
    "wire/backoff._MOST_KEYS": "so many are left alone",
    "wire/blobs.MAX_CHUNKS": "wire/test_blob_lists.py::test_a_longer_list_is_refused",
    "wire/introductions.MAX_SPOKEN_BYTES": "test_versions.py::test_a_version_is_not_long",
    "wire/manifest.MAX_MEMBERS": "member/test_proposing.py::test_the_largest_record_fits_a_message",
    "wire/structure._SHOWN_CHARACTERS": "wire/test_structure.py::test_long_names_are_cut_in_errors",
}

# Numbers that limit nothing which others could use up, and why.
NO_BOUND = {
    "checks/draw._DRAWN_BYTES": "the format of draws: so many that no remainder favours anybody",
    "checks/sequential._UNIT": "the unit of sums",
    "chain/catching_up._STALE_ROUNDS": "counts peers that are behind, for the metrics",
    "chain/starting.COMPANY_SECONDS": "a pause before a node starts by itself",
    "chain/starting.AGAIN_SECONDS": "a pause between a node's own tries to start",
    "member/fetching.FETCH_SECONDS": "after which a node looks whether it needs an update still",
    "member/fetching.FETCH_PAUSE_SECONDS": "a pause between a node's own tries to fetch",
    "member/view._UNUSUAL_HEARTBEATS": "says in the log whose update is late",
    "wire/blobs.CHUNK_BYTES": "the format: how data is cut",
    "member/capacity.DAY_SECONDS": "the unit of capacities",
    "wire/manifest.CLOSING_ROUNDS": "the format: how a run ends",
    "wire/manifest.PROTOCOL_VERSION": "the format: its version",
    "wire/swarm_id._ID_BYTES": "the format of swarm-ids",
    "wire/swarm_id._CHECKSUM_BYTES": "the format of swarm-ids",
    "wire/swarm_id._CHARACTERS": "the format of swarm-ids",
    "wire/swarm_id._CRC_POLYNOMIAL": "the format of swarm-ids",
    "wire/swarm_id._CRC_START": "the format of swarm-ids",
}


def numbers() -> set[str]:
    """All constants of the protocol that are numbers."""
    found: set[str] = set()
    assert protocol.__file__ is not None
    for folder in FOLDERS:
        for path in (Path(protocol.__file__).parent / folder).glob("*.py"):
            module = import_module(f"{protocol.__name__}.{folder}.{path.stem}")
            for node in ast.parse(path.read_text("utf-8")).body:
                targets = node.targets if isinstance(node, ast.Assign) else []
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                found |= {
                    f"{folder}/{path.stem}.{name}"
                    for name in names
                    if name.isupper() and isinstance(getattr(module, name), (int, float))
                }
    return found


@cache
def _origins(module: ModuleType) -> dict[str, str]:
    """Where the names come from that a module imports from others of the protocol."""
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text("utf-8"))
    origins: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level and node.module:
            package = module.__name__.split(".")[: -node.level]
            origins |= {name.name: ".".join([*package, node.module]) for name in node.names}
    return origins


def broken() -> set[str]:
    """The constants that rules put another number in the place of."""
    found: set[str] = set()
    for rule in RULES:
        for owner, name, _ in rule.patches():
            if isinstance(owner, ModuleType) and name.isupper():
                origin = _origins(owner).get(name, owner.__name__)
                found.add(f"{'/'.join(origin.split('.')[-2:])}.{name}")
    return found


def test_every_bound_is_shown() -> None:
    all_of_them = numbers()
    assert len(all_of_them) > 100
    forgotten = all_of_them - broken() - SHOWN_BY.keys() - NO_BOUND.keys()
    assert not forgotten, "break it in simulation/rules, or say here which test shows it"


def test_the_tables_name_what_there_is(checkout: Path) -> None:
    known = {rule.name for rule in RULES}
    for constant, shown in SHOWN_BY.items():
        path, _, function = shown.partition("::")
        if function:
            assert f"def {function}(" in (checkout / "tests" / path).read_text("utf-8"), constant
        else:
            assert shown in known, constant
    assert numbers() >= SHOWN_BY.keys() | NO_BOUND.keys()
    # Once each.
    assert not SHOWN_BY.keys() & NO_BOUND.keys()
    assert not broken() & (SHOWN_BY.keys() | NO_BOUND.keys())
