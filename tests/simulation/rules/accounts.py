"""Rules of accounts: what gives votes, what takes them, and what looks of others come to."""

from __future__ import annotations

from fractions import Fraction

from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.checks import accounts, disputes, verdict
from distro_node.protocol.checks.accounts import (
    FRESH,
    TERM,
    WINDOW,
    Account,
    Accounts,
    Facts,
    FirstLook,
    SecondLook,
)
from distro_node.protocol.checks.disputes import LASTS, Outcome
from distro_node.protocol.checks.sequential import LevelTest
from distro_node.protocol.checks.standing import Standings, level_test
from distro_node.protocol.checks.verdict import SAID, TOLD, Seen, Usual

from .rule import Rule, edited, put

# Private here: `_settle`: what is broken.
# Private here: `_accounts`, `_looked`: what is kept is counted.

GOOD, LOW = 15_000, 500
PEERS = [PeerId(content_id(b"member %d" % number)) for number in range(12)]
FOUNDER, ANN, BEN, CAT = PEERS[:4]


class _Run:
    """Rounds in which everybody does its share, one after the other."""

    def __init__(self, count: int = 4, deviation: int = 250) -> None:
        self.accounts = Accounts(FOUNDER, level_test(deviation))
        self.members = PEERS[:count]
        self.shares = dict.fromkeys(self.members, 4)
        self.round = 0
        # Of round 0 there is nothing to look at.
        self.close()

    def close(self, *looks: FirstLook, again: tuple[SecondLook, ...] = ()) -> None:
        self.accounts.close(Facts(self.round, self.shares, looks, again), self.members)
        self.round += 1

    def look(
        self, checker: PeerId, peer: PeerId, score: int = GOOD, beginning: int | None = None
    ) -> FirstLook:
        """A look at the last round."""
        return FirstLook(checker, peer, self.round - 1, 4, score, beginning)

    def to_term(self) -> None:
        """To the beginning of the next one."""
        self.close()
        while self.round % TERM:
            self.close()

    def quiet(self, rounds: int) -> None:
        for _ in range(rounds):
            self.close()

    def settled(self) -> _Run:
        """All have votes."""
        self.close()
        for peer in self.members[1:]:
            self.close(self.look(FOUNDER, peer))
        self.to_term()
        for checker in self.members:
            for peer in self.members:
                if peer != checker:
                    self.close(self.look(checker, peer))
        self.to_term()
        assert set(self.accounts.votes) == set(self.members)
        return self

    def dispute(self, checker: PeerId, peer: PeerId, *, low: bool) -> None:
        """A low look, and what all others say of it."""
        first = self.look(checker, peer, LOW)
        self.close(first)
        others = sorted(self.accounts.others(first))
        self.close(again=tuple(SecondLook(other, first, low) for other in others))

    def votes(self, peer: PeerId) -> int:
        return self.accounts.votes.get(peer, 0)


def _work_without_looks_gives_no_votes() -> bool:
    run = _Run()
    run.to_term()
    run.to_term()
    return set(run.accounts.votes) == {FOUNDER}


def _a_look_vouches_for_what_was_done_until_then() -> bool:
    run = _Run()
    run.quiet(3)
    run.close(run.look(FOUNDER, ANN))
    run.to_term()
    return run.votes(ANN) == 4 * 4


def _a_failed_check_takes_what_waits() -> bool:
    run = _Run().settled()
    run.dispute(ANN, BEN, low=True)
    return not run.accounts[BEN].waiting


def _votes_stay_for_a_term() -> bool:
    run = _Run()
    run.close()
    run.close(run.look(FOUNDER, ANN))
    return set(run.accounts.votes) == {FOUNDER}


def _old_work_gives_no_votes() -> bool:
    run = _Run().settled()
    del run.shares[ANN]
    run.quiet(WINDOW)
    run.close(run.look(FOUNDER, BEN))
    run.to_term()
    return run.votes(ANN) == 0 < run.votes(BEN)


def _three_vouch_for_first_votes() -> bool:
    run = _Run().settled()
    newcomer = PEERS[5]
    run.members = [*run.members, newcomer]
    run.shares[newcomer] = 4
    run.close()
    run.close(run.look(FOUNDER, newcomer), run.look(ANN, newcomer))
    run.to_term()
    return run.votes(newcomer) == 0


def _once_is_enough() -> bool:
    """The founder vouched for all when it was alone, and nobody has since."""
    run = _Run(8)
    run.close()
    for peer in run.members[1:]:
        run.close(run.look(FOUNDER, peer))
    run.to_term()
    run.to_term()
    return len(run.accounts.votes) == 8


def _a_look_is_fresh() -> bool:
    run = _Run()
    run.quiet(FRESH + 2)
    return not run.accounts.takes_look(FOUNDER, ANN, 1, run.round)


def _one_look_a_round() -> bool:
    run = _Run()
    run.close()
    run.close(run.look(FOUNDER, ANN))
    return not run.accounts.takes_look(FOUNDER, BEN, run.round - 2, run.round)


def _looks_that_are_recorded_are_forgotten() -> bool:
    run = _Run().settled()
    for _ in range(4 * TERM):
        run.close(run.look(ANN, BEN))
    return len(run.accounts._looked) <= TERM + FRESH


def _who_has_no_votes_looks_at_nobody() -> bool:
    run = _Run()
    run.close()
    run.close(run.look(ANN, BEN))
    return run.accounts[BEN].checks == 0


def _nobody_looks_at_itself() -> bool:
    run = _Run()
    run.close()
    run.close(run.look(FOUNDER, FOUNDER))
    return run.accounts[FOUNDER].checks == 0


def _who_is_not_believed_looks_at_nobody() -> bool:
    run = _Run().settled()
    account = run.accounts[CAT]
    for _ in range(12):
        account.standings = account.standings.looked(contradicted=True)
    before = run.accounts[ANN].checks
    run.close()
    run.close(run.look(CAT, ANN))
    return run.accounts[ANN].checks == before


def _time_clears_a_word() -> bool:
    run = _Run().settled()
    for _ in range(12):
        run.dispute(CAT, BEN, low=False)
    accused = run.accounts[CAT].standings.word.accused
    for _ in range(40):
        run.to_term()
    return accused and not run.accounts[CAT].standings.word.accused


def _who_is_not_believed_has_no_votes() -> bool:
    run = _Run().settled()
    for _ in range(12):
        run.dispute(CAT, BEN, low=False)
    run.to_term()
    return run.votes(CAT) == 0 < run.votes(BEN)


def _a_low_look_accuses_nobody() -> bool:
    run = _Run().settled()
    before = run.accounts[BEN].standings.work
    run.close(run.look(ANN, BEN, LOW))
    return run.accounts[BEN].standings.work == before


def _looks_that_others_contradict_count_for_no_level() -> bool:
    """Several liars, each as long as it is believed, would take somebody's votes."""
    run = _Run().settled()
    before = run.accounts[BEN].standings.level.sum
    run.dispute(CAT, BEN, low=False)
    return run.accounts[BEN].standings.level.sum <= before


def _what_others_confirm_counts_for_the_level() -> bool:
    run = _Run().settled()
    before = run.accounts[BEN].standings.level.sum
    run.dispute(CAT, BEN, low=True)
    return run.accounts[BEN].standings.level.sum > before


def _a_dispute_is_dropped() -> bool:
    run = _Run().settled()
    run.close(run.look(ANN, BEN, LOW))
    run.quiet(LASTS)
    return not run.accounts.disputes


def _neither_of_the_two_looks_again() -> bool:
    run = _Run().settled()
    first = run.look(ANN, BEN, LOW)
    run.close(first)
    return run.accounts.others(first) == {FOUNDER, CAT}


def _where_nobody_else_votes_the_first_looks_again() -> bool:
    run = _Run()
    run.close()
    first = run.look(FOUNDER, ANN, LOW)
    run.close(first)
    return run.accounts.may_look_again(FOUNDER, first)


def _each_looks_again_once() -> bool:
    run = _Run(6).settled()
    first = run.look(ANN, BEN, LOW)
    run.close(first)
    for _ in range(5):
        run.close(again=(SecondLook(CAT, first, True),))
    return len(run.accounts.disputes) == 1 and run.accounts[BEN].failed == 0


def _who_fails_without_votes_is_turned_away() -> bool:
    run = _Run()
    run.close()
    run.dispute(FOUNDER, ANN, low=True)
    return run.accounts[ANN].turned_away and not run.accounts.counts(ANN)


def _who_has_votes_may_fail_once() -> bool:
    run = _Run().settled()
    run.dispute(FOUNDER, ANN, low=True)
    return run.accounts.counts(ANN) and not run.accounts[ANN].turned_away


def _who_is_out_has_no_votes_when_it_is_back() -> bool:
    run = _Run().settled()
    for _ in range(4):
        run.dispute(FOUNDER, ANN, low=True)
    return not run.accounts.counts(ANN) and run.accounts[ANN].work == 0


def _what_does_not_count_does_not_wait() -> bool:
    run = _Run()
    run.close()
    run.dispute(FOUNDER, ANN, low=True)
    run.quiet(3)
    return not run.accounts[ANN].waiting


def _a_contradicted_look_is_held_against_its_maker() -> bool:
    run = _Run().settled()
    run.dispute(CAT, BEN, low=False)
    return run.accounts[CAT].standings.word.sum > 0


def _who_is_alone_vouches_for_itself() -> bool:
    run = _Run(1)
    run.to_term()
    run.to_term()
    return run.votes(FOUNDER) == 2 * TERM * 4


def _who_is_away_has_no_votes() -> bool:
    run = _Run().settled()
    run.members = run.members[:3]
    run.close()
    away = run.votes(CAT)
    run.members = PEERS[:4]
    run.close()
    return away == 0 < run.votes(CAT)


def _where_nobody_has_any_all_have_one() -> bool:
    return accounts.held({FOUNDER: 9}, [ANN, BEN]) == {ANN: 1, BEN: 1}


def _who_had_votes_keeps_them_where_nobody_earns_any() -> bool:
    fresh = Accounts(FOUNDER, level_test(250))
    for round_ in range(TERM):
        fresh.close(Facts(round_, {}), [FOUNDER])
    return fresh.earned == {FOUNDER: 1}


def _an_account_is_forgotten() -> bool:
    """A crowd comes and goes, and does nothing."""
    run = _Run()
    run.shares = dict.fromkeys(PEERS, 4)
    run.close()
    run.shares = {FOUNDER: 4}
    run.quiet(WINDOW)
    run.to_term()
    return set(run.accounts._accounts) == {FOUNDER}


def _looks_are_in_proportion_to_votes() -> bool:
    votes = {FOUNDER: 98, ANN: 1, BEN: 1}
    return accounts.chance_to_look(votes, ANN, 1) == Fraction(3, 100)


def _what_is_usual_is_what_was_of_late() -> bool:
    run = _Run().settled()
    for score in (*[GOOD] * 40, *[9_000] * 20):
        run.close(*(run.look(FOUNDER, peer, score) for peer in (ANN,)))
    return {seen.score for seen in run.accounts[ANN].scores} == {9_000}


def _no_score_is_so_low_that_it_passes() -> bool:
    return verdict.passing(2000) == 3000


def _three_say_what_is_usual_for_a_size() -> bool:
    """Two with a share of a rare size are measured by all the others."""
    many = [([Seen(10_000, 4)] * SAID, 1)] * 9
    rare = [([Seen(9_000, 64)] * SAID, 1)] * 2
    return Usual(many + rare).of(64) == 1250


def _of_a_rare_size_no_more_is_believed_than_is_safe() -> bool:
    """How scores fall with the share is another thing in every model."""
    return Usual([([Seen(10_000, 4)] * SAID, 1)] * 9).of(16) == 2500


def _a_few_looks_say_nothing() -> bool:
    """Nor do they of a share of a rare size, where all say what is usual for another one."""
    few = [([Seen(10_000, 4)] * (SAID - 1), 1)] * 9
    rare = [([Seen(10_000, 4)] * SAID + [Seen(10_000, 64)] * (SAID - 1), 1)] * 9
    return Usual(few).of(4) == 0 and not Usual(rare).knows(64)


def _whoever_is_looked_at_first_does_not_say_what_is_usual() -> bool:
    first = [([Seen(1 << 40, 4)] * SAID, 1)] * 4
    return Usual([*first, *[([Seen(10_000, 4)], 1)] * 5]).of(4) == 0


def _looked_at_in_halves(beginning: int, score: int = GOOD) -> _Run:
    """Everybody's beginnings are at eight tenths, and BEN's for a while at this."""
    run = _Run().settled()
    for peer in run.members[1:] * TOLD:
        run.close(run.look(FOUNDER, peer, beginning=GOOD * 8 // 10))
    run.to_term()
    for _ in range(20):
        run.close(run.look(FOUNDER, BEN, score, beginning))
    return run


def _who_computes_beginnings_alone_has_no_votes() -> bool:
    return not _looked_at_in_halves(GOOD * 13 // 10).accounts[BEN].standings.credible


def _who_computes_ends_alone_has_no_votes() -> bool:
    return not _looked_at_in_halves(GOOD * 2 // 10).accounts[BEN].standings.credible


def _a_missing_half_takes_no_updates() -> bool:
    return _looked_at_in_halves(GOOD * 13 // 10).accounts.counts(BEN)


def _one_half_is_as_well_known_as_is_usual() -> bool:
    return _looked_at_in_halves(GOOD * 8 // 10).accounts[BEN].standings.credible


def _a_few_lies_about_a_half_take_nobodys_votes() -> bool:
    run = _looked_at_in_halves(GOOD * 8 // 10)
    for _ in range(4):
        run.close(run.look(CAT, BEN, beginning=1 << 60))
    return run.accounts[BEN].standings.credible


def _scores_that_just_pass_take_nobodys_votes() -> bool:
    """A liar may say them of everybody: nobody looks again."""
    run = _Run().settled()
    for _ in range(20):
        run.close(run.look(CAT, BEN, GOOD * 55 // 100))
    return run.accounts[BEN].standings.credible


def _three_say_what_a_half_is() -> bool:
    two = [([Seen(10_000, 4, 8_000)] * TOLD, 1)] * 2
    return Usual(two).halves(Seen(10_000, 4, 8_000)) is None


def _some_looks_say_what_a_half_is() -> bool:
    few = [([Seen(10_000, 4, 8_000)] * (TOLD - 1), 1)] * 9
    return Usual(few).halves(Seen(10_000, 4, 8_000)) is None


def _levels_have_a_bound() -> bool:
    return verdict.level(1 << 80, 1) == 1 << 40


def _five_settle_a_dispute() -> bool:
    """The first ones: later ones turn nothing."""
    again = dict(zip(PEERS, (True, True, False, False, True, True, True, True), strict=False))
    return disputes.outcome(again, 9) == "open"


def _four_of_five_agree() -> bool:
    again = dict(zip(PEERS, (True, True, True, False, False), strict=False))
    return disputes.outcome(again, 9) == "open"


def _so_many_are_called() -> bool:
    return disputes.chance_to_be_called(1, 80, 5) == Fraction(1, 10)


_settles = Accounts._settle


def _scores_whatever_comes_of_it(self: Accounts, first: FirstLook, settled: Outcome) -> None:
    self._score(self._accounts[first.peer], first)
    _settles(self, first, settled)


RULES = (
    Rule(
        "work without looks gives no votes",
        _work_without_looks_gives_no_votes,
        edited(
            Accounts,
            "_earned",
            ("peer in self.earned or len(account.vouchers)", "3 or len(account.vouchers)"),
            ("return account.work", "return account.work + sum(n for _, n in account.waiting)"),
        ),
    ),
    Rule(
        "a look vouches for what was done until then",
        _a_look_vouches_for_what_was_done_until_then,
        edited(
            Account,
            "vouch",
            ("while self.waiting and self.waiting[0][0] <= round_:", "while self.waiting:"),
        ),
    ),
    Rule(
        "a failed check takes what waits",
        _a_failed_check_takes_what_waits,
        edited(Accounts, "_settle", ("account.waiting.clear()", "pass")),
    ),
    Rule(
        "votes stay for a term",
        _votes_stay_for_a_term,
        put(accounts, "TERM", 1),
    ),
    Rule("old work gives no votes", _old_work_gives_no_votes, put(accounts, "WINDOW", 1 << 30)),
    Rule("three vouch for first votes", _three_vouch_for_first_votes, put(accounts, "VOUCHERS", 1)),
    Rule(
        "to be vouched for once is enough",
        _once_is_enough,
        edited(Accounts, "_earned", ("peer in self.earned or ", "")),
    ),
    Rule("a look is fresh", _a_look_is_fresh, put(accounts, "FRESH", 1 << 30)),
    Rule(
        "one look a round",
        _one_look_a_round,
        edited(Accounts, "takes_look", ("(checker, round_) not in self._looked", "True")),
    ),
    Rule(
        "looks that are recorded are forgotten",
        _looks_that_are_recorded_are_forgotten,
        edited(Accounts, "_begin_term", ("if look[1] > round_ - FRESH", "if True")),
    ),
    Rule(
        "who has no votes looks at nobody",
        _who_has_no_votes_looks_at_nobody,
        edited(Accounts, "_may_look", ("looker in self.votes and ", "")),
    ),
    Rule(
        "nobody looks at itself",
        _nobody_looks_at_itself,
        edited(Accounts, "_may_look", ("looker != peer and ", "")),
    ),
    Rule(
        "who is not believed looks at nobody",
        _who_is_not_believed_looks_at_nobody,
        edited(Accounts, "_may_look", (" and not self[looker].standings.word.accused", "")),
    ),
    Rule(
        "time clears a word",
        _time_clears_a_word,
        edited(
            Accounts,
            "_begin_term",
            ("account.standings.looked(contradicted=False)", "account.standings"),
        ),
    ),
    Rule(
        "who is not believed has no votes",
        _who_is_not_believed_has_no_votes,
        edited(Accounts, "_earned", (" and account.standings.credible", "")),
    ),
    Rule(
        "a low look accuses nobody",
        _a_low_look_accuses_nobody,
        edited(
            Accounts,
            "_look",
            ("account.low += 1", "account.standings = account.standings.checked(failed=True)"),
        ),
    ),
    Rule(
        "looks that others contradict count for no level",
        _looks_that_others_contradict_count_for_no_level,
        put(Accounts, "_settle", _scores_whatever_comes_of_it),
    ),
    Rule(
        "what others confirm counts for the level",
        _what_others_confirm_counts_for_the_level,
        edited(Accounts, "_settle", ("self._score(account, first)", "pass")),
    ),
    Rule("a dispute is dropped", _a_dispute_is_dropped, put(accounts, "LASTS", 1 << 30)),
    Rule(
        "neither of the two looks again",
        _neither_of_the_two_looks_again,
        edited(Accounts, "others", (" - {first.checker, first.peer}", "")),
    ),
    Rule(
        "where nobody else votes the first looks again",
        _where_nobody_else_votes_the_first_looks_again,
        edited(Accounts, "others", (" or voters & {first.checker}", "")),
    ),
    Rule(
        "each looks again once",
        _each_looks_again_once,
        edited(
            Accounts,
            "_look_again",
            (
                "dispute.again[look.looker] = look.low",
                "dispute.again[PeerId(bytes([len(dispute.again)]))] = look.low",
            ),
        ),
    ),
    Rule(
        "who fails without votes is turned away",
        _who_fails_without_votes_is_turned_away,
        edited(Accounts, "_settle", ("if first.peer not in self.earned", "if False")),
    ),
    Rule(
        "who has votes may fail once",
        _who_has_votes_may_fail_once,
        edited(Accounts, "_settle", ("if first.peer not in self.earned", "if True")),
    ),
    Rule(
        "who is out has no votes when it is back",
        _who_is_out_has_no_votes_when_it_is_back,
        edited(Accounts, "_settle", ("account.vouched.clear()", "pass")),
    ),
    Rule(
        "what does not count does not wait",
        _what_does_not_count_does_not_wait,
        edited(Accounts, "close", ("if account.standings.counts", "if True")),
    ),
    Rule(
        "a contradicted look is held against its maker",
        _a_contradicted_look_is_held_against_its_maker,
        edited(Accounts, "_settle", ("contradicted=not failed", "contradicted=False")),
    ),
    Rule(
        "who is alone vouches for itself",
        _who_is_alone_vouches_for_itself,
        edited(Accounts, "_begin_term", ("len(voters) == 1", "False")),
    ),
    Rule(
        "who is away has no votes",
        _who_is_away_has_no_votes,
        edited(Accounts, "close", ("if present != self._members", "if False")),
    ),
    Rule(
        "where nobody has votes all have one",
        _where_nobody_has_any_all_have_one,
        put(accounts, "held", lambda earned, members: {}),
    ),
    Rule(
        "who had votes keeps them where nobody earns any",
        _who_had_votes_keeps_them_where_nobody_earns_any,
        edited(Accounts, "_begin_term", ("earned or self.earned", "earned")),
    ),
    Rule(
        "an account is forgotten",
        _an_account_is_forgotten,
        edited(
            Accounts, "_begin_term", ("not account.work and account.last", "False and account.last")
        ),
    ),
    Rule(
        "looks are in proportion to votes",
        _looks_are_in_proportion_to_votes,
        put(accounts, "chance_to_look", lambda votes, peer, every: Fraction(1, every)),
    ),
    Rule(
        "what is usual is what was of late",
        _what_is_usual_is_what_was_of_late,
        put(accounts, "RECENT", 1000),
    ),
    Rule("what passes has a least", _no_score_is_so_low_that_it_passes, put(verdict, "LEAST", 0)),
    Rule(
        "three say what is usual for a size",
        _three_say_what_is_usual_for_a_size,
        put(verdict, "ALIKE", 1),
    ),
    Rule(
        "of a rare size no more is believed than is safe",
        _of_a_rare_size_no_more_is_believed_than_is_safe,
        edited(Usual, "of", ("return anywhere // 2", "return anywhere")),
    ),
    Rule(
        "a few looks say nothing of what is usual",
        _a_few_looks_say_nothing,
        put(verdict, "SAID", 1),
    ),
    Rule(
        "whoever is looked at first does not say what is usual",
        _whoever_is_looked_at_first_does_not_say_what_is_usual,
        edited(Usual, "__init__", ("everywhere if len(looks) >= SAID else [0]", "everywhere")),
    ),
    Rule(
        "who computes beginnings alone has no votes",
        _who_computes_beginnings_alone_has_no_votes,
        edited(Standings, "halved", ("test.step(halves.second)", "0")),
    ),
    Rule(
        "who computes ends alone has no votes",
        _who_computes_ends_alone_has_no_votes,
        edited(Standings, "halved", ("test.step(halves.first)", "0")),
    ),
    Rule(
        "a half that is missing takes votes alone",
        _a_missing_half_takes_no_updates,
        put(Standings, "counts", Standings.credible),
    ),
    Rule(
        "a half is held to what is usual",
        _one_half_is_as_well_known_as_is_usual,
        edited(Usual, "halves", ("1000 * part // self._part", "part - 400")),
    ),
    Rule(
        "a few lies about a half take nobody's votes",
        _a_few_lies_about_a_half_take_nobodys_votes,
        edited(Usual, "halves", ("max(500, min(1500, 1000 * part // self._part))", "4000")),
    ),
    Rule(
        "scores that just pass take nobody's votes",
        _scores_that_just_pass_take_nobodys_votes,
        edited(LevelTest, "step", ("level = max(level, self.least)", "pass")),
    ),
    Rule("three say what a half is", _three_say_what_a_half_is, put(verdict, "ALIKE", 1)),
    Rule("some looks say what a half is", _some_looks_say_what_a_half_is, put(verdict, "TOLD", 1)),
    Rule("levels have a bound", _levels_have_a_bound, put(verdict, "_LARGEST", 1 << 90)),
    Rule("five settle a dispute", _five_settle_a_dispute, put(disputes, "AGAIN", 9)),
    Rule("four of five agree", _four_of_five_agree, put(disputes, "AGREEING", 3)),
    Rule("so many are called", _so_many_are_called, put(disputes, "CALLED", 80)),
)
