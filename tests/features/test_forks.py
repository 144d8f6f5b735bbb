"""Branches on a feature stand in its own modules, and elsewhere only where the list here says why.

A feature takes part by hooks, and its absence is a null object, each chosen once. A fork is a condition
that names the feature's table or data: `audits`, `committees`, `private`.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_purity import FOLDERS, modules

NAMES = {"audits": "audits", "committees": "committees", "private": "private data"}
VALUES = {"private", "shared"}
"""What `data.policy` is compared with."""

# The modules of each feature, by the beginnings of their paths.
OWN = {
    "audits": (
        *("protocol/audit/", "protocol/chain/audits", "protocol/chain/receipts"),
        *("protocol/member/auditor", "node/create/audits", "node/session/audit_report"),
        *("node/telemetry/audit_", "node/control/audit_rows", "node/training/reaudit"),
        *("node/trainer/audit_", "node/trainer/reaudit", "node/results/receipt_files"),
        "node/cli/receipt",
    ),
    "committees": (
        *("protocol/committee/", "protocol/chain/committees", "protocol/member/aggregation"),
        *("node/create/committees", "node/session/aggregator_task"),
        *("node/session/sign_vote_exchange", "node/storage/sign_vote_store"),
    ),
    "private data": ("node/create/private_data", "node/private_data/", "node/telemetry/privacy"),
}
# The tables of the features in a manifest.
TABLES = "protocol/wire/work_specs"

# Forks that stay: each is the plain thing where it stands, and a hook would hide it.
PLAIN = {
    # A table's own rules, beside the fields that they are about.
    "protocol/wire/manifest.py": {"private data": 3},
    "node/create/manifest_file.py": {"private data": 1},
    # The null object's rule for records.
    "protocol/chain/chain_index.py": {"audits": 1},
    # Where a null object or the real one is chosen.
    "node/trainer/optimizer/update_bodies.py": {"committees": 1},
    "node/results/contribution_table.py": {"audits": 1},
    # What a trainer, which trusts no founder, refuses to train.
    "node/trainer/tasks/group_rewards.py": {"private data": 1, "audits": 1},
    "node/trainer/tasks/preference_task.py": {"private data": 1},
    # Whether this round has an audit, not whether the swarm has.
    "node/trainer/training_session.py": {"audits": 1},
    # Without shards there are no chunks, and other numbers of samples.
    "node/content/prefetch.py": {"private data": 1},
    "node/create/manifest_draft.py": {"private data": 1},
    "node/create/new_swarm.py": {"private data": 1},
    # A phrase in a text.
    "node/cli/swarms.py": {"private data": 1},
    "node/create/summary.py": {"private data": 1},
    "node/results/model_card.py": {"private data": 1},
}


def conditions(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield every condition on which something is done or not done."""
    for node in ast.walk(tree):
        match node:
            case ast.If() | ast.IfExp() | ast.While():
                yield node.test
            case ast.comprehension():
                yield from node.ifs
            case ast.match_case(guard=ast.expr() as guard):
                yield guard


def features_in(condition: ast.expr) -> set[str]:
    """Return the features that a condition is about."""
    found = set()
    for node in ast.walk(condition):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in NAMES:
                found.add(NAMES[name])
            case ast.Compare(comparators=[ast.Constant(value=value)]) if value in VALUES:
                found.add("private data")
    return found


def forks(checkout: Path) -> dict[str, Counter[str]]:
    """Return how many forks each module has on features of which it is no module."""
    found: dict[str, Counter[str]] = {}
    for folder in FOLDERS:
        for path in modules(checkout, folder):
            name = path.relative_to(checkout).as_posix()
            count = Counter(
                feature
                for condition in conditions(ast.parse(path.read_text(encoding="utf-8")))
                for feature in features_in(condition)
                if not name.startswith((TABLES, *OWN[feature]))
            )
            if count:
                found[name] = count
    return found


def test_a_branch_on_a_feature_is_in_its_own_modules_or_has_a_reason(checkout: Path) -> None:
    for starts in OWN.values():
        for start in starts:
            assert list(checkout.glob(f"{start}*")), start
    assert forks(checkout) == PLAIN


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("if manifest.audits is not None: pass", {"audits"}),
        ("x = None if committees is None else 1", {"committees"}),
        ("x = [each for each in all_ if table.policy == 'private']", {"private data"}),
        ("match effect:\n    case Train() if swarm.audits: pass", {"audits"}),
        ("x = DataSpec(private=None)", set()),
    ],
)
def test_a_condition_on_a_feature_is_found(line: str, found: set[str]) -> None:
    assert {each for test in conditions(ast.parse(line)) for each in features_in(test)} == found
