"""The rules that reward completions: comparison, patterns of strangers, rules of packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.training import reward_rules
from distro_node.node.training.reward_rules import (
    BadAnswer,
    RewardRule,
    compile_pattern,
    require_rule,
)
from distro_node.node.training.task_names import RewardSettings

PACKAGE = """
def length(prompt, completion, answer):
    return len(completion) / len(answer)

def fails(prompt, completion, answer):
    raise KeyError("no such thing\\nand more")
"""


def rule(**settings: Any) -> RewardRule:
    return RewardRule(RewardSettings(max_new_tokens=4, **settings))


def test_exact_compares_without_the_space_around() -> None:
    exact = rule()
    assert exact.reward("2+2=", " 4\n", "4") == 1.0
    assert exact.reward("2+2=", "44", "4") == 0.0
    assert exact.reward("2+2=", "", "4") == 0.0


def test_extract_compares_the_first_group() -> None:
    pytest.importorskip("re2")
    boxed = rule(extract=r"####\s*(\d+)")
    assert boxed.reward("", "so #### 12 and #### 13", "12") == 1.0
    assert boxed.reward("", "so #### 12 and #### 13", "13") == 0.0
    assert boxed.reward("", "12", "12") == 0.0
    # A group that takes no part in the match is empty.
    assert rule(extract="(a)|b").reward("", "b", "") == 1.0
    for pattern, words in (("(", "no regular expression"), ("abc", "has no group")):
        with pytest.raises(UserError, match=words) as told:
            rule(extract=pattern)
        assert told.value.code == ExitCode.MANIFEST
    with pytest.raises(ValueError, match="extract: belongs to"):
        RewardSettings(max_new_tokens=4, checker="regex", extract="(a)")


def test_a_regular_expression_is_found_anywhere() -> None:
    pytest.importorskip("re2")
    regex = rule(checker="regex")
    assert regex.reward("", "it is 42.", r"\b42\b") == 1.0
    assert regex.reward("", "it is 421.", r"\b42\b") == 0.0
    assert regex.reward("", "it is 42.", r"^42") == 0.0


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        # In a backtracking engine each takes longer than the universe has existed.
        ("(a+)+$", "a" * 20_000 + "b"),
        ("^(a|aa)*$", "a" * 20_000 + "b"),
        ("(x?){200}x{200}$", "x" * 199 + "y" * 20_000),
        ("(.*a.{12}){3}c$", "ab" * 10_000),
    ],
)
def test_a_pattern_that_explodes_elsewhere_gives_its_reward(pattern: str, text: str) -> None:
    pytest.importorskip("re2")
    assert rule(checker="regex").reward("", text, pattern) == 0.0
    assert rule(checker="regex").reward("", text, f"{pattern}|{text[-1]}") == 1.0


def test_unusable_patterns_are_refused_in_one_line() -> None:
    pytest.importorskip("re2")
    regex = rule(checker="regex")
    regex.check_answer("a{1,1000}")
    for pattern, words in (
        ("(", "missing"),
        ("a(?=b)", "invalid perl operator"),
        (r"(a)\1", "invalid escape"),
        ("a" * 1001, "more than 1000 characters"),
        # Its program is larger than any that is allowed.
        (r"(\pL\pN){500}", "too large"),
    ):
        with pytest.raises(BadAnswer, match=words) as told:
            regex.check_answer(pattern)
        assert "\n" not in str(told.value)
        with pytest.raises(ValueError, match=words):
            compile_pattern(pattern)
    # Not a pattern, so anything goes.
    rule().check_answer("(")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a package that brings checkers, and appears installed to Python."""
    root = tmp_path / "site"
    about = root / "lengthrule-1.0.dist-info"
    about.mkdir(parents=True)
    (root / "lengthrule.py").write_text(PACKAGE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lengthrule\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[distro_node.checkers]\nlength = lengthrule:length\nfails = lengthrule:fails\n"
        "gone = nowhere.at.all:rule\n"
    )
    monkeypatch.syspath_prepend(str(root))
    return root


def test_a_rule_of_an_installed_package(package: Path) -> None:
    require_rule("grpo", {"max_new_tokens": 4, "checker": "length"})
    assert rule(checker="length").reward("", "ab", "abcd") == 0.5
    with pytest.raises(ValueError, match=r"'length' returned 2\.0, not a number from 0 to 1"):
        rule(checker="length").reward("", "abcd", "ab")
    with pytest.raises(ValueError, match="'fails' failed: 'no such thing") as told:
        rule(checker="fails").reward("", "", "")
    assert "\n" not in str(told.value)
    with pytest.raises(UserError, match="cannot be loaded") as broken:
        rule(checker="gone").reward("", "", "")
    assert broken.value.code == ExitCode.NO_TASK
    # Two packages that offer the same name would reward differently.
    about = package / "other-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[distro_node.checkers]\nlength = other:length\n")
    with pytest.raises(UserError, match="several packages provide the checker 'length'"):
        require_rule("grpo", {"max_new_tokens": 4, "checker": "length"})


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="'poetry', which is not installed here") as told:
        require_rule("grpo", {"max_new_tokens": 4, "checker": "poetry"})
    assert told.value.code == ExitCode.NO_TASK
    monkeypatch.setattr(reward_rules, "find_spec", lambda _: None)
    with pytest.raises(UserError, match="google-re2 is not installed") as missing:
        require_rule("grpo", {"max_new_tokens": 4, "checker": "regex"})
    assert missing.value.code == ExitCode.NO_TASK
    assert "rewards" in (missing.value.remedy or "")
    with pytest.raises(UserError, match="google-re2"):
        rule(extract="(a)")
    # Nobody else needs it, and a stranger's settings may be anything: the trainer refuses them.
    rule()
    require_rule("grpo", {"checker": 3})
    require_rule("causal_lm", {"checker": "poetry"})
