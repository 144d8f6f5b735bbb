"""How far a member is, told to whoever watches: its state, in the words of the status."""

from __future__ import annotations

from ..protocol.member.member import Member
from .telemetry.telemetry import Telemetry


def say_state(member: Member, telemetry: Telemetry, last_round: int | None) -> None:
    """Say where the member stands, in a run that has this last round."""
    match member.state:
        case "loading" | "applying":
            telemetry.report("replaying rounds", member.applied_round + 1, member.round)
            telemetry.enter("syncing")
        case "asking":
            telemetry.enter("joining")
        case "recalling" | "collecting" | "agreeing":
            telemetry.progress = None
            telemetry.enter("waiting" if member.round == 0 else "training")
        case "finished":
            telemetry.progress = None
            if telemetry.state != "finished":
                # The rounds behind the last one train nothing: people know the run's own.
                telemetry.event("finished", last_round or member.applied_round)
            telemetry.enter("finished")
        case "leaving" | "left" | "expelled":
            # Said when it was told to leave, or by the daemon.
            pass
