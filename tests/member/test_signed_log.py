"""Own messages stay on the disk until their round is decided, and are removed together."""

from __future__ import annotations

from distro_node.protocol.member.signed_log import FORGET_BYTES, SignedLog


def log(every: int = 4) -> SignedLog[str]:
    log: SignedLog[str] = SignedLog(every)
    for round_ in range(3, 10):
        log.note(round_, f"vote {round_}", 100)
        log.note(round_, f"finalize {round_}", 100)
    return log


def test_messages_of_decided_rounds_are_dropped_now_and_then() -> None:
    said = log()
    assert [said.forget(round_) for round_ in (5, 6, 7)] == [[], [], []]
    gone = said.forget(8)
    assert gone == [f"{kind} {round_}" for round_ in range(3, 8) for kind in ("vote", "finalize")]
    assert said.kept() == ["vote 8", "finalize 8", "vote 9", "finalize 9"]
    assert said.forget(8) == []


def test_many_messages_are_dropped_sooner() -> None:
    said = log(every=1000)
    said.note(6, "a long proposal", FORGET_BYTES)
    assert "a long proposal" not in said.forget(5)
    said = log(every=1000)
    said.note(6, "a long proposal", FORGET_BYTES)
    assert "a long proposal" in said.forget(7)
    # With that gone there is room again.
    assert said.forget(9) == []


def test_messages_about_rounds_to_come_stay() -> None:
    """The end of the ledger was lost, and is decided once more."""
    said = log()
    assert said.forget(4) == ["vote 3", "finalize 3"]
    assert "finalize 9" in said.kept()
