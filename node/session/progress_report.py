"""The member's progress, reported to telemetry in terms of the status."""

from __future__ import annotations

from ...protocol.member.view import MemberView
from ..telemetry.telemetry import Telemetry
from ..util.progress import Progress


def report_state(member: MemberView, telemetry: Telemetry, last_round: int | None) -> None:
    """Report the member's state; `last_round` is the run's last round, None if the run has no end."""
    match member.state:
        case "loading":
            # The loader reports what it loads.
            telemetry.enter("syncing")
        case "applying":
            done, total = member.applied_round + 1, member.round or None
            telemetry.report(Progress(what="replaying rounds", done=done, total=total))
            telemetry.enter("syncing")
        case "asking":
            telemetry.enter("joining")
        case "recalling" | "collecting" | "agreeing":
            telemetry.progress = None
            telemetry.enter("waiting" if member.round == 0 else "training")
        case "finished":
            telemetry.progress = None
            if telemetry.state != "finished":
                # The rounds after the last one train nothing, so the run's own last round is shown.
                telemetry.event("finished", last_round or member.applied_round)
            telemetry.enter("finished")
        case "leaving" | "left" | "expelled":
            # These are reported when the leave is requested, or by the daemon.
            pass
