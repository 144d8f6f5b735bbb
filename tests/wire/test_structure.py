"""Strict structures: valid values are taken unchanged, all others are refused with their place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgpack
import pytest
from distro_node.crypto.hashing import ContentId
from distro_node.protocol.wire.encoding import decode, encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.structure import (
    ADDITION,
    Length,
    Range,
    StructureError,
    from_plain,
    to_plain,
)
from hypothesis import given
from hypothesis import strategies as st


@dataclass(frozen=True, kw_only=True)
class Inner:
    count: Annotated[int, Range(0, 10)]


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: Annotated[str, Length(1, 4)]
    rate: Annotated[float, Range(0.0, 1.0)] = 0.5
    flag: bool = False
    mode: Literal["fast", "slow"] = "fast"
    width: Literal[1, 2] = 1
    inner: Inner = field(default_factory=lambda: Inner(count=1))
    many: tuple[Inner, ...] = ()
    maybe: Inner | None = None
    blob: ContentId = field(default=ContentId(bytes(32)))
    table: dict[str, Any] = field(default_factory=dict)
    anything: Any = None
    mapping: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name == "bad":
            raise ValueError("a bad name")


def problem(**changes: Any) -> tuple[str, str]:
    with pytest.raises(StructureError) as caught:
        from_plain(Outer, {"name": "x", **changes}, named=True)
    return caught.value.where, caught.value.problem


def test_defaults_fill_in_what_a_table_leaves_out() -> None:
    assert from_plain(Outer, {"name": "x"}, named=True) == Outer(name="x")


@pytest.mark.parametrize("named", [True, False])
def test_what_goes_in_comes_out(named: bool) -> None:
    value = Outer(
        name="abcd",
        rate=1.0,
        flag=True,
        mode="slow",
        width=2,
        many=(Inner(count=0), Inner(count=10)),
        maybe=Inner(count=5),
        blob=ContentId(b"b" * 32),
        table={"a": [1, 2.5, None, {"b": "c"}]},
        anything=[True],
    )
    assert from_plain(Outer, to_plain(value, named=named), named=named) == value


@pytest.mark.parametrize(
    ("changes", "where", "words"),
    [
        ({"nam": 1}, "", "unknown key 'nam'; did you mean 'name'?"),
        ({"name": 3}, "name", "expected a string, got 3 (a whole number)"),
        ({"name": ""}, "name", "must have 1 to 4 characters, has 0"),
        ({"name": "bad"}, "", "a bad name"),
        ({"rate": "1"}, "rate", "expected a number"),
        ({"rate": True}, "rate", "expected a number, got True (true or false)"),
        ({"rate": 1.5}, "rate", "must be between 0 and 1, got 1.5"),
        ({"rate": math.nan}, "rate", "must be a finite number"),
        ({"rate": math.inf}, "rate", "must be a finite number"),
        ({"rate": 10**400}, "rate", "must be a finite number, got a whole number of 1329 bits"),
        ({"flag": 1}, "flag", "expected true or false"),
        ({"mode": "medium"}, "mode", "must be one of 'fast', 'slow'"),
        ({"mode": ["fast"]}, "mode", "must be one of"),
        ({"width": True}, "width", "must be one of 1, 2"),
        ({"width": 1.0}, "width", "must be one of 1, 2"),
        ({"inner": {}}, "inner", "the key 'count' is missing"),
        ({"inner": []}, "inner", "expected a table, got a list of 0"),
        ({"inner": {"count": 11}}, "inner.count", "must be between 0 and 10, got 11"),
        ({"many": [{"count": 1}, {"count": False}]}, "many[1].count", "expected a whole number"),
        ({"many": {"count": 1}}, "many", "expected a list, got a table"),
        ({"maybe": 1}, "maybe", "expected a table"),
        ({"blob": bytes(31)}, "blob", "must have 32 bytes, has 31"),
        ({"blob": "x" * 32}, "blob", "expected bytes"),
        ({"table": []}, "table", "expected a table"),
        ({"table": {"a": {"b": [0, {1}]}}}, "table.a.b[1]", "unexpected {1}"),
        ({"table": {"a": {1: 2}}}, "table.a", "keys must be strings"),
        ({"table": {"a": math.nan}}, "table.a", "unexpected nan"),
        ({"table": {"a": 2**64}}, "table.a", "unexpected a whole number of 65 bits"),
        ({"anything": b"bytes"}, "anything", "unexpected 5 bytes"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(
    changes: dict[str, Any], where: str, words: str
) -> None:
    place, text = problem(**changes)
    assert place == where
    assert words in text


@pytest.mark.parametrize("value", [[], [1] * 11, [1] * 13, "text", None, {"name": "x"}])
def test_positions_are_as_many_as_there_are_fields(value: Any) -> None:
    with pytest.raises(StructureError, match="expected a list of 12"):
        from_plain(Outer, value, named=False)


@dataclass(frozen=True)
class Before:
    """Message of an earlier version."""

    number: int
    usual: int = 7


@dataclass(frozen=True)
class Since(Before):
    """The same with later additions."""

    data: bytes = field(default=b"", metadata=ADDITION)
    many: tuple[Before, ...] = field(default=(), metadata=ADDITION)
    last: int = field(default=3, metadata=ADDITION)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Since(1), [1, 7]),
        (Since(1, data=b"x"), [1, 7, b"x"]),
        # A field before a non-default one is written, whatever its value.
        (Since(1, many=(Before(2),)), [1, 7, b"", [[2, 7]]]),
        (Since(1, last=4), [1, 7, b"", [], 4]),
        (Since(1, data=b"x", last=4), [1, 7, b"x", [], 4]),
        (Since(1, data=b"x", last=3), [1, 7, b"x"]),
    ],
)
def test_additions_are_left_out_from_the_end_on(value: Since, plain: list[Any]) -> None:
    assert to_plain(value, named=False) == plain
    assert from_plain(Since, plain, named=False) == value
    assert decode(Since, encode(value), max_bytes=100) == value


def test_what_was_made_before_keeps_its_bytes() -> None:
    assert encode(Since(1, 2)) == encode(Before(1, 2))
    # Only additions may be missing.
    for plain in ([1], [1, 7, b"x", [], 4, 5]):
        with pytest.raises(StructureError, match="expected a list of 5"):
            from_plain(Since, plain, named=False)


@pytest.mark.parametrize(
    "plain", [[1, 7, b""], [1, 7, b"", []], [1, 7, b"x", []], [1, 7, b"", [], 3]]
)
def test_only_the_shortest_spelling_is_accepted(plain: list[Any]) -> None:
    data = msgpack.packb(plain)
    assert data is not None
    with pytest.raises(ProtocolError) as caught:
        decode(Since, data, max_bytes=100)
    assert caught.value.reason == "malformed"


def test_free_values_end_at_a_depth() -> None:
    nested: Any = 0
    for _ in range(12):
        nested = [nested]
    assert from_plain(Outer, {"name": "x", "anything": nested}, named=True).anything == nested
    where, text = problem(anything=[nested])
    assert (where, text) == ("anything" + "[0]" * 13, "nested too deeply")


def test_long_names_are_cut_in_errors() -> None:
    """A name of megabytes is an attack, and the error goes into a log."""
    assert len("".join(problem(**{"x" * 1_000_000: 1}))) < 200
    where, text = problem(table={"x" * 1_000_000: {"y" * 1_000_000: {1}}})
    assert len(where + text) < 200


def test_places_cost_nothing_where_there_is_no_error() -> None:
    """Each item's path was once a new text as long as the key above it: here, terabytes."""
    table = {"k" * 2_000_000: [0] * 2_000_000}
    assert from_plain(Outer, {"name": "x", "table": table}, named=True).table == table


def test_the_order_of_a_table_is_that_of_its_keys() -> None:
    table = {"b": {"d": 1, "c": 2}, "a": 3}
    read = from_plain(Outer, {"name": "x", "table": table}, named=True).table
    assert (list(read), list(read["b"])) == (["a", "b"], ["c", "d"])
    assert list(to_plain(Outer(name="x", table=table), named=True)["table"]) == ["a", "b"]


def test_unions_are_our_mistake() -> None:
    @dataclass(frozen=True)
    class Undecided:
        value: int | str

    with pytest.raises(TypeError, match="not an optional type"):
        from_plain(Undecided, [1], named=False)


def test_tuples_of_a_fixed_length_are_our_mistake() -> None:
    @dataclass(frozen=True)
    class Paired:
        value: tuple[int, str]

    with pytest.raises(TypeError, match="fixed length"):
        from_plain(Paired, [[1, "a"]], named=False)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
)


@given(st.dictionaries(st.sampled_from([*Outer.__dataclass_fields__, "other"]), anything))
def test_a_structure_or_a_structure_error(plain: dict[str, Any]) -> None:
    try:
        value = from_plain(Outer, plain, named=True)
    except StructureError:
        return
    assert from_plain(Outer, to_plain(value, named=True), named=True) == value
