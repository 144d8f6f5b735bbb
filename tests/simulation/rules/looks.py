"""Rules of looks: which may be recorded, and what one member says and keeps of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache

from distro_node.crypto.envelope import Envelope, signing_bytes
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain import checked, ledger
from distro_node.protocol.chain.checked import CheckedWork
from distro_node.protocol.checks import draw
from distro_node.protocol.checks.accounts import TERM, FirstLook
from distro_node.protocol.checks.draw import Look
from distro_node.protocol.member import looking as looking_module
from distro_node.protocol.member.effects import Judge, LookAgain, Train
from distro_node.protocol.member.inputs import Judged, LookedAgain
from distro_node.protocol.member.looking import Looking
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import Check, LookEntry, Recheck, Record

from ..chain import Chain, identity
from ..checked_chain import GOOD, LOW, CheckedChain
from .rule import Rule, edited, put

# Private here: `_kept`, `_drawn`, `_firsts`: what is kept is counted; `_earned`, `_disputes`: they are
# made up.

FOUNDER = identity(0).peer
VOTED = 2 * TERM + 1
"""A round in which all have votes."""


def _refused(record: Callable[[], Record], chain: Chain) -> bool:
    try:
        chain.ledger.append(chain.decide(record()))
    except ProtocolError:
        return True
    return False


@cache
def _grown(count: int = 4) -> CheckedChain:
    return CheckedChain(count).check(VOTED)


def _chain() -> CheckedChain:
    """In which all have votes. Each case has one of its own."""
    grown = _grown()
    assert len(grown.work.accounts.votes) == 4
    chain = CheckedChain(0)
    chain.manifest, chain.ledger = grown.manifest, grown.ledger.truncated(len(grown.ledger))
    return chain


def _disputed() -> tuple[CheckedChain, FirstLook]:
    chain = _chain()
    return chain, chain.disputed()


# Records


def _nobody_chooses_its_secret() -> bool:
    chain = _chain()
    return _refused(lambda: chain.record(looks=(chain.look(FOUNDER, secret=bytes(16)),)), chain)


def _who_was_not_drawn_looks_at_nobody() -> bool:
    chain = CheckedChain(4, every=10_000).check(5)
    return _refused(lambda: chain.record(looks=(chain.look(FOUNDER),)), chain)


def _what_does_not_count_is_not_looked_at() -> bool:
    chain = _chain()
    drawn = chain.drawn(FOUNDER, chain.round)
    assert drawn is not None
    due = [p for p in chain.ledger.dealing.due(chain.round) if p != drawn.peer]
    chain.grow(updates=[chain.update(peer) for peer in due])
    return _refused(lambda: chain.record(looks=(chain.look(FOUNDER),)), chain)


def _a_look_is_at_a_round_that_is_decided() -> bool:
    chain = _chain()
    return _refused(lambda: chain.record(looks=(chain.look(FOUNDER, chain.round),)), chain)


def _a_look_is_recorded_once() -> bool:
    chain = _chain()
    look = chain.look(FOUNDER)
    chain.grow(looks=(look,))
    return _refused(lambda: chain.record(looks=(look,)), chain)


def _each_look_stands_there_once() -> bool:
    chain = _chain()
    return _refused(lambda: chain.record(looks=(chain.look(FOUNDER),) * 2), chain)


def _looks_are_signed() -> bool:
    chain = _chain()
    look = dataclasses.replace(chain.look(FOUNDER), total=GOOD - 1)
    return _refused(lambda: chain.record(looks=(look,)), chain)


def _second_looks_are_signed() -> bool:
    chain, first = _disputed()
    chain.grow()
    (again,) = _seconds(chain, first)[:1]
    again = dataclasses.replace(again, scores=again.scores[::-1], signature=bytes(64))
    return _refused(lambda: chain.record(looks_again=(again,)), chain)


def _second_looks_stand_there_once() -> bool:
    chain, first = _disputed()
    chain.grow()
    again = _seconds(chain, first)[:1] * 2
    return _refused(lambda: chain.record(looks_again=again), chain)


def _there_are_no_looks_where_work_is_not_checked() -> bool:
    chain = Chain(4).grow_until(4)
    look = LookEntry(FOUNDER, 3, bytes(16), 1, 1, bytes(64))
    return _refused(lambda: chain.record(looks=(look,)), chain)


def _all_bind_themselves() -> bool:
    chain = _chain()
    return _refused(lambda: chain.record(updates=[chain.update(FOUNDER, commitment=b"")]), chain)


def _seconds(chain: CheckedChain, first: FirstLook, now: int | None = None) -> tuple:
    """The second looks that the next record, or that of round `now`, may hold."""
    found = []
    for peer in chain.membership.peers:
        entry = chain.again(peer, first)
        try:
            chain.work.second_look(entry, chain.round if now is None else now)
        except ProtocolError:
            continue
        found.append(entry)
    return tuple(found)


def _second_looks_wait() -> bool:
    """Their secret draws a first look, too."""
    chain, first = _disputed()
    return not _seconds(chain, first) and len(_seconds(chain, first, chain.round + 1)) > 0


def _second_looks_are_at_the_whole_share() -> bool:
    chain, first = _disputed()
    chain.grow()
    (again,) = _seconds(chain, first)[:1]
    fewer = chain.again(again.looker, first, [LOW] * (len(again.scores) - 1))
    return _refused(lambda: chain.record(looks_again=(fewer,)), chain)


def _of_a_large_share_some_are_looked_at_again() -> bool:
    chain, first = _disputed()
    disputes = chain.work.accounts._disputes
    large = dataclasses.replace(first, share=64)
    disputes[large] = disputes[first]
    secrets = {peer: chain.secret(peer, disputes[first].since) for peer in chain.membership.peers}
    found = (chain.work.sequences_again(peer, secret, large) for peer, secret in secrets.items())
    return max(len(numbers) for numbers in found if numbers) == 8


def _who_is_not_called_does_not_look_again() -> bool:
    """Beside one with nearly all votes the rest are hardly ever called."""
    chain = CheckedChain(9).grow_until(3)
    votes = {**dict.fromkeys(chain.membership.peers, 1), FOUNDER: 1 << 40}
    accounts = chain.work.accounts
    accounts.earned = accounts.votes = chain.work._earned[0] = votes
    first = chain.disputed()
    chain.grow()
    return not _seconds(chain, first)


def _who_is_alone_is_called() -> bool:
    """It looked at the only other one with votes, which has nearly all of them."""
    chain, first = _disputed()
    chain.grow()
    votes = {first.checker: 1, first.peer: 1 << 80}
    chain.work._earned = [votes] * len(chain.work._earned)
    chain.work.accounts.votes = votes
    return [entry.looker for entry in _seconds(chain, first)] == [first.checker]


def _old_accounts_are_made_again() -> bool:
    chain = _chain()
    known = dict(chain.work.votes(TERM + 3))
    short = chain.ledger.truncated(TERM + 3)
    assert short.work is not None
    return dict(short.work.accounts.votes) == known and len(short.work) == TERM + 3


def _few_accounts_are_kept() -> bool:
    chain = CheckedChain(1)
    while chain.round < 14 * TERM:
        chain.grow(updates=[])
    return len(chain.work._kept) <= 10


def _some_accounts_of_long_ago_are_kept() -> bool:
    chain = CheckedChain(1)
    while chain.round < 45 * TERM:
        chain.grow(updates=[])
    return sorted(chain.work._kept)[:2] == [0, 32 * TERM]


def _a_secret_is_too_long_to_be_tried() -> bool:
    try:
        draw.commitment(bytes(2))
    except ValueError:
        return True
    return False


# One member


class _Looker:
    """The founder at work, its looks alone."""

    def __init__(self, chain: CheckedChain) -> None:
        self.chain = chain
        self.ledger = chain.ledger
        self.looking = Looking(FOUNDER, self._sign)

    def _sign(self, kind: str, body: bytes) -> Envelope:
        swarm = self.chain.manifest.swarm
        signature = identity(0).sign(signing_bytes(kind, swarm, body))
        return Envelope(kind=kind, swarm=swarm, sender=FOUNDER, body=body, signature=signature)

    def told(self, dealt: int | None = None) -> Train:
        """What it is told to compute in the next round."""
        round_ = self.ledger_round
        samples = self.ledger.share(round_, FOUNDER) or (0,)
        effect = Train(round_, self.ledger.head, samples, round_ if dealt is None else dealt)
        return self.looking.beside(effect, self.ledger)

    @property
    def ledger_round(self) -> int:
        return len(self.ledger)

    def judges(self) -> list[Judge]:
        """The next record is decided and applied: what it is told to judge."""
        self.chain.grow()
        effects = self.looking.applied(self.ledger_round - 1, self.ledger)
        return [effect for effect in effects if isinstance(effect, Judge)]

    def screens(self, sender: PeerId, message: Check | Recheck) -> str:
        """Why a word is refused; empty if it is not."""
        try:
            self.looking.screen(sender, message, self.ledger)
        except ProtocolError as error:
            return error.reason
        return ""

    def hears(self, entry: LookEntry) -> str:
        said = entry.said(self.ledger.parent(entry.round))
        refused = self.screens(entry.checker, said)
        if not refused:
            self.looking.put(entry.checker, said, entry.signature)
        return refused


def _looker() -> _Looker:
    return _Looker(_chain())


def _a_look_is_computed_beside() -> bool:
    looker = _looker()
    told, drawn = looker.told(), looker.chain.drawn(FOUNDER, looker.ledger_round)
    assert drawn is not None
    dealt = looker.ledger.share(looker.ledger_round, drawn.peer)
    assert dealt is not None
    return (told.look, told.look_share) == (dealt[drawn.sequence], len(dealt))


def _who_has_several_rounds_looks_at_nobody() -> bool:
    looker = _looker()
    return looker.told(dealt=looker.ledger_round - 1).look is None


def _a_restart_changes_no_secret() -> bool:
    one, other = _looker(), _looker()
    place = one.ledger_round, one.ledger.head
    return one.looking.commitment(*place) == other.looking.commitment(*place)


def _what_is_decided_is_judged() -> bool:
    looker = _looker()
    looker.told()
    drawn = looker.chain.drawn(FOUNDER, looker.ledger_round)
    assert drawn is not None
    (judge,) = looker.judges()
    record = looker.ledger[judge.round].record
    return [judge.update] == [e.update for e in record.updates if e.peer == drawn.peer]


def _nothing_seen_is_nothing_said() -> bool:
    looker = _looker()
    looker.told()
    (judge,) = looker.judges()
    return looker.looking.judged(Judged(judge.round, 0, 0), looker.ledger) == []


def _what_was_seen_is_said_once() -> bool:
    looker = _looker()
    looker.told()
    (judge,) = looker.judges()
    seen = Judged(judge.round, GOOD, 1)
    said = [len(looker.looking.judged(seen, looker.ledger)) for _ in range(2)]
    return said == [1, 0]


def _what_is_never_judged_is_forgotten() -> bool:
    looker = _looker()
    for _ in range(40):
        looker.told()
        looker.judges()
    return len(looker.looking._drawn) < 20


def _another_chain_begins_anew() -> bool:
    looker = _looker()
    looker.told()
    looker.hears(looker.chain.look(_other(looker.chain)))
    looker.looking.start_over()
    return not looker.looking._drawn and not looker.looking._firsts


def _other(chain: CheckedChain) -> PeerId:
    return next(peer for peer in chain.membership.peers if peer != FOUNDER)


def _called() -> tuple[_Looker, list[LookAgain]]:
    """The founder is called to look again; the first look was another's."""
    chain = _chain()
    while True:
        looks = [e for e in chain.looks(LOW) if e.checker != FOUNDER]
        chain.grow(looks=looks[:1])
        looker = _Looker(chain)
        effects = [e for e in looker.looking.called(chain.ledger) if isinstance(e, LookAgain)]
        if effects:
            return looker, effects


def _who_is_called_looks_at_the_share() -> bool:
    looker, (again,) = _called()
    share = looker.ledger.share(again.first.round, again.first.peer)
    record = looker.ledger[again.first.round].record
    updates = [e.update for e in record.updates if e.peer == again.first.peer]
    return [again.update] == updates and set(again.samples) <= set(share or ())


def _who_is_called_is_called_once() -> bool:
    looker, _ = _called()
    looker.chain.grow()
    return looker.looking.called(looker.ledger) == []


def _a_second_look_is_told_in_time_and_once() -> bool:
    looker, (again,) = _called()
    scores = looker.chain.again(FOUNDER, again.first).scores
    looker.looking.looked_again(LookedAgain(again.first, scores), looker.ledger)
    said = [len(looker.looking.to_tell(looker.ledger))]
    looker.chain.grow()
    said += [len(looker.looking.to_tell(looker.ledger)) for _ in range(2)]
    return said == [0, 1, 0]


def _who_could_not_look_again_says_nothing() -> bool:
    looker, (again,) = _called()
    looker.looking.looked_again(LookedAgain(again.first, ()), looker.ledger)
    looker.chain.grow()
    return looker.looking.to_tell(looker.ledger) == []


def _old_looks_are_not_passed_on() -> bool:
    looker = _looker()
    entry = looker.chain.look(_other(looker.chain), 12)
    return looker.hears(entry) == "other_round"


def _looks_on_other_chains_are_not_passed_on() -> bool:
    looker = _looker()
    entry = looker.chain.look(_other(looker.chain))
    said = dataclasses.replace(entry.said(looker.ledger.head), parent=bytes(32))
    return looker.screens(entry.checker, said) == "wrong_parent"


def _another_word_is_not_passed_on() -> bool:
    looker = _looker()
    peer = _other(looker.chain)
    first = looker.hears(looker.chain.look(peer))
    return (first, looker.hears(looker.chain.look(peer, score=LOW))) == ("", "equivocation")


def _what_is_recorded_is_not_said_again() -> bool:
    looker = _looker()
    entry = looker.chain.look(_other(looker.chain))
    looker.hears(entry)
    looker.chain.grow(looks=(entry,))
    looker.looking.forget(looker.ledger)
    return not looker.looking._firsts


def _so_many_looks_wait() -> bool:
    looker = _looker()
    for number in range(1000):
        said = Check(number, looker.ledger.head, bytes(16), 1, 1)
        looker.looking.put(FOUNDER, said, bytes(64))
    return len(looker.looking._firsts) == 256


def _so_many_looks_are_recorded() -> bool:
    looker = _looker()
    looker.looking.forget = lambda ledger: None  # type: ignore[method-assign]
    for number in range(100):
        said = Check(number, looker.ledger.head, bytes(16), 1, 1)
        looker.looking.put(FOUNDER, said, bytes(64))
    firsts, _ = looker.looking.entries(looker.ledger)
    return [entry.round for entry in firsts] == list(range(64))


def _so_many_second_looks_are_recorded() -> bool:
    looker = _looker()
    looker.looking.forget = lambda ledger: None  # type: ignore[method-assign]
    for number in range(100):
        said = Recheck(number, looker.ledger.head, FOUNDER, bytes(16), ())
        looker.looking.put(FOUNDER, said, bytes(64))
    _, seconds = looker.looking.entries(looker.ledger)
    return [entry.round for entry in seconds] == list(range(32))


def _of(name: str, *changes: tuple[str, str]) -> Callable[[], list]:
    return edited(CheckedWork, name, *changes)


def _mine(name: str, *changes: tuple[str, str]) -> Callable[[], list]:
    return edited(Looking, name, *changes)


def _unsigned() -> Callable[[], list]:
    return edited(
        ledger,
        "check_looks",
        ('not signed("check"', 'False and not signed("check"'),
        ('not signed("recheck"', 'False and not signed("recheck"'),
    )


RULES = (
    Rule(
        "nobody chooses its secret",
        _nobody_chooses_its_secret,
        _of("_bound_to", ("entry.commitment == commitment(secret)", "True")),
    ),
    Rule(
        "who was not drawn looks at nobody",
        _who_was_not_drawn_looks_at_nobody,
        put(checked, "drawn_look", lambda *arguments: Look(identity(1).peer, 0)),
    ),
    Rule(
        "what does not count is not looked at",
        _what_does_not_count_is_not_looked_at,
        _of("first_look", ("update_of(look.peer, self._records(entry.round)) is None", "False")),
    ),
    Rule(
        "a look is at a round that is decided",
        _a_look_is_at_a_round_that_is_decided,
        _of("first_look", ("not entry.round < now", "False")),
    ),
    Rule(
        "a look is recorded once",
        _a_look_is_recorded_once,
        _of(
            "first_look",
            ("not self.accounts.takes_look(", "False and not self.accounts.takes_look("),
        ),
    ),
    Rule(
        "each look stands there once",
        _each_look_stands_there_once,
        edited(ledger, "check_looks", ("firsts != sorted(set(firsts))", "False")),
    ),
    Rule("looks are signed", _looks_are_signed, _unsigned()),
    Rule("second looks are signed", _second_looks_are_signed, _unsigned()),
    Rule(
        "second looks stand there once",
        _second_looks_stand_there_once,
        edited(ledger, "check_looks", ("again != sorted(set(again))", "False")),
    ),
    Rule(
        "no looks where work is not checked",
        _there_are_no_looks_where_work_is_not_checked,
        edited(ledger, "check_looks", ("if record.looks or record.looks_again", "if False")),
    ),
    Rule(
        "all bind themselves to a secret",
        _all_bind_themselves,
        put(checked, "check_commitment", lambda bound_to, work: None),
    ),
    Rule(
        "second looks wait",
        _second_looks_wait,
        _of("may_be_told", ("now > dispute.since + self._ahead", "now > dispute.since")),
    ),
    Rule(
        "second looks are at the whole share",
        _second_looks_are_at_the_whole_share,
        _of("second_look", (" or len(sequences) != len(entry.scores)", "")),
    ),
    Rule(
        "who is not called does not look again",
        _who_is_not_called_does_not_look_again,
        _of("sequences_again", ("not is_called(secret, name, called)", "False")),
    ),
    Rule(
        "of a large share some are looked at again",
        _of_a_large_share_some_are_looked_at_again,
        put(checked, "MOST_SEQUENCES", 1000),
    ),
    Rule(
        "where all have to agree all are called",
        _who_is_alone_is_called,
        edited(checked, "chance_to_be_called", ("possible < AGAIN", "False")),
    ),
    Rule(
        "old accounts are made again",
        _old_accounts_are_made_again,
        _of("before", ("copy._length, length):", "copy._length, copy._length):")),
    ),
    Rule("few accounts are kept", _few_accounts_are_kept, put(checked, "_LATEST", 1 << 30)),
    Rule(
        "some accounts of long ago are kept",
        _some_accounts_of_long_ago_are_kept,
        put(checked, "_APART", 1 << 30),
    ),
    Rule(
        "a secret is too long to be tried",
        _a_secret_is_too_long_to_be_tried,
        put(draw, "SECRET_BYTES", 2),
    ),
    Rule(
        "a look is computed beside the own share",
        _a_look_is_computed_beside,
        _mine("beside", ("look=dealt[look.sequence]", "look=dealt[0] - 1")),
    ),
    Rule(
        "who has several rounds looks at nobody",
        _who_has_several_rounds_looks_at_nobody,
        _mine("beside", (" or effect.aside", "")),
    ),
    Rule(
        "a restart changes no secret",
        _a_restart_changes_no_secret,
        put(Looking, "_secret", lambda self, *_: id(self).to_bytes(16, "big")),
    ),
    Rule(
        "what is decided is judged",
        _what_is_decided_is_judged,
        _mine("applied", ("update_of(look.peer", "update_of(self._me")),
    ),
    Rule(
        "nothing seen is nothing said",
        _nothing_seen_is_nothing_said,
        _mine("judged", (" or what.squares == 0", "")),
    ),
    Rule(
        "what was seen is said once",
        _what_was_seen_is_said_once,
        _mine("judged", ("self._drawn.pop(what.round, None)", "self._drawn.get(what.round)")),
    ),
    Rule(
        "what is never judged is forgotten",
        _what_is_never_judged_is_forgotten,
        _mine("applied", ("number <= round - FRESH", "False")),
    ),
    Rule(
        "another chain begins anew",
        _another_chain_begins_anew,
        put(Looking, "start_over", lambda self: None),
    ),
    Rule(
        "who is called looks at the share",
        _who_is_called_looks_at_the_share,
        _mine("called", ("update_of(first.peer", "update_of(first.checker")),
    ),
    Rule(
        "who is called is called once",
        _who_is_called_is_called_once,
        _mine("called", ("dispute.since != now - 1 or ", "")),
    ),
    Rule(
        "a second look is told in time",
        _a_second_look_is_told_in_time_and_once,
        _mine("to_tell", ("not work.may_be_told(first, len(ledger))", "False")),
    ),
    Rule(
        "a second look is told once",
        _a_second_look_is_told_in_time_and_once,
        _mine("to_tell", ("self._again.pop(first)", "self._again[first]")),
    ),
    Rule(
        "who could not look again says nothing",
        _who_could_not_look_again_says_nothing,
        _mine("looked_again", (" and what.scores", "")),
    ),
    Rule(
        "old looks are not passed on",
        _old_looks_are_not_passed_on,
        _mine("screen", ("not now - lasts < message.round < now", "not message.round < now")),
    ),
    Rule(
        "looks on other chains are not passed on",
        _looks_on_other_chains_are_not_passed_on,
        _mine("screen", ("message.parent != ledger.parent(message.round)", "False")),
    ),
    Rule(
        "another word about a look is not passed on",
        _another_word_is_not_passed_on,
        _mine("screen", ("known is not None and ", "False and ")),
    ),
    Rule(
        "what is recorded is not said again",
        _what_is_recorded_is_not_said_again,
        put(looking_module, "_holds", lambda look: True),
    ),
    Rule("so many looks wait", _so_many_looks_wait, put(looking_module, "_MAX_WAITING", 1 << 30)),
    Rule(
        "so many looks are recorded",
        _so_many_looks_are_recorded,
        put(looking_module, "MAX_LOOKS", 1000),
    ),
    Rule(
        "so many second looks are recorded",
        _so_many_second_looks_are_recorded,
        put(looking_module, "MAX_LOOKS_AGAIN", 1000),
    ),
)
