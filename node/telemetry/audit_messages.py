"""Texts about audits: whether a node's updates count, its votes, and remedies."""

from __future__ import annotations

from .audit_status import AuditsStatus, OwnAudits, Why
from .messages import UserMessage, short

_COMPUTES_RIGHT = "check that this computer computes correctly (distro-node doctor)"
# Number of excluded members that are listed.
_EXCLUDED_SHOWN = 4


def own_audits_text(own: OwnAudits) -> UserMessage:
    """Return the reason for this node's audit state, and the remedy."""
    match own.reason:
        case "dismissed":
            return UserMessage(
                "other members recomputed samples of your work and got different results, and "
                "none has confirmed any of your work yet, so the swarm does not admit this node "
                "for now",
                f"{_COMPUTES_RIGHT} and runs an unmodified release; the swarm forgets "
                "the failures 1,024 rounds after your last update",
            )
        case "failed":
            passes = own.passes_until_counted
            return UserMessage(
                "other members recomputed your samples and got different results in "
                f"{_of(own.failed, own.audited)} of your work",
                f"{_COMPUTES_RIGHT}; audits continue, and your updates count again after {passes} "
                f"passed audit{'' if passes == 1 else 's in a row'}",
            )
        case "scores":
            return UserMessage(
                "your updates score lower in audits than those of others, as if some of your "
                "samples were not computed",
                f"{_COMPUTES_RIGHT}; your votes return as audits pass",
            )
        case "halves":
            return UserMessage(
                "audits find one half of each of your samples in your updates and little of the "
                "other half, as if it was not computed",
                f"{_COMPUTES_RIGHT}; your votes return as audits pass",
            )
        case "contradicted":
            return UserMessage(
                "re-audits contradict this node's audits of others' work",
                f"{_COMPUTES_RIGHT}; your votes return with time",
            )
        case "unconfirmed":
            return UserMessage("you get votes once enough other members have audited your work")
        case None:
            return UserMessage("your votes are earned by work that other members have audited")


def excluded_text(audits: int, failed: int) -> str:
    """Return why a member's updates do not count."""
    return f"{_of(failed, audits)} of its work failed"


def excluded_list(audits: AuditsStatus) -> str:
    """Return the first of the excluded members, each with the reason."""
    shown = [f"{short(each.peer)}: {each.reason}" for each in audits.excluded[:_EXCLUDED_SHOWN]]
    more = len(audits.excluded) - _EXCLUDED_SHOWN
    return "; ".join(shown) + (f"; +{more}" if more > 0 else "")


def votes_text(own: OwnAudits, audits: AuditsStatus) -> str:
    """Return a node's fraction of all votes."""
    if not own.votes:
        return "none yet" if own.reason == "unconfirmed" else "none"
    return f"{own.votes:,} of {audits.votes:,}, {own.votes / audits.votes:.1%}"


def audits_text(audits: int, low: int) -> str:
    """Return the number of audits, and how many had a low score."""
    return f"{audits:,}, {low:,} low" if low else f"{audits:,}"


def is_trouble(why: Why | None) -> bool:
    """Whether the owner has to look into this reason."""
    return why not in (None, "unconfirmed")


def trouble_sentence(own: OwnAudits) -> str:
    """Return the consequence of the trouble, and its cause."""
    what = "your updates count, but give no votes" if own.counts else "your updates do not count"
    return f"{what}: {own_audits_text(own).meaning}"


def _of(failed: int, audits: int) -> str:
    plural = "" if audits == 1 else "s"
    return f"{failed} of {audits} audit{plural}"
