"""Rules of what records certify of everybody's work, and of what a receipt may say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from distro_node.protocol.chain import checked, ledger, receipts
from distro_node.protocol.chain.ledger import check_record
from distro_node.protocol.chain.receipts import Receipt, write_receipt
from distro_node.protocol.checks import merkle
from distro_node.protocol.checks.accounts import TERM, Accounts, Facts, FirstLook
from distro_node.protocol.checks.contributions import Contribution, Contributions
from distro_node.protocol.checks.standing import level_test
from distro_node.protocol.wire.errors import ProtocolError

from ..chain import identity
from ..checked_chain import VouchedChain
from .rule import Rule, edited, put

ME, OTHER = identity(0).peer, identity(1).peer
CERTIFIES = 6


@cache
def _chain() -> VouchedChain:
    return VouchedChain(3).grow_until(CERTIFIES + 3)


@cache
def _receipt() -> Receipt:
    found = write_receipt(_chain().ledger, CERTIFIES, ME)
    assert found is not None
    return found


def _refused(why: str, what: Callable[[], Any]) -> bool:
    try:
        what()
    except ProtocolError as error:
        return why in str(error)
    return False


def _record_refused(rounds: int, said: bytes) -> bool:
    chain = VouchedChain(2).grow_until(rounds)
    record = chain.record(contributions=said)
    return _refused("account of all contributions", lambda: check_record(record, chain.ledger))


def _a_claim_is_signed() -> bool:
    claimed = receipts.with_claim(_receipt(), 5, identity(1).sign)
    return _refused("not its word", lambda: receipts.examine(claimed))


def _a_record_lacks_the_account() -> bool:
    return _record_refused(CERTIFIES, b"")


def _a_record_has_another_account() -> bool:
    return _record_refused(CERTIFIES, bytes(32))


def _a_record_has_one_where_none_is_due() -> bool:
    return _record_refused(CERTIFIES + 1, bytes(32))


def _nobody_vouches_for_who_is_alone() -> bool:
    accounts = Accounts(ME, level_test(250))
    for round_ in range(TERM):
        accounts.close(Facts(round_, {ME: 4}), {ME})
    return accounts.contributions[ME] == Contribution(TERM, 4 * TERM, 0)


def _who_looks_vouches() -> bool:
    accounts = Accounts(ME, level_test(250))
    accounts.close(Facts(1, {OTHER: 4}), {ME, OTHER})
    accounts.close(Facts(2, {}, (FirstLook(ME, OTHER, 1, 4, 9000),)), {ME, OTHER})
    return accounts.contributions[OTHER] == Contribution(1, 4, 4)


def _what_is_shared_is_not_copied() -> bool:
    many = Contributions().after({_peer(number): 1 for number in range(80)}, {})
    later = many.after({_peer(0): 1}, {})
    # What two values share is no promise to anybody.
    return later._settled is many._settled and later[_peer(0)].updates == 2  # see above


def _peer(number: int) -> Any:
    return bytes([number]) * 32


def _a_tree_has_one_size() -> bool:
    """Whoever is last of three moves up as it is: in a list of two it would stand a step higher."""
    items = [b"a", b"b", b"c"]
    steps = merkle.path(items, 2)
    tree = merkle.tree_hash(items)
    return merkle.stands(b"c", 2, 3, steps, tree) and not merkle.stands(b"c", 1, 2, steps, tree)


def _a_proof_has_no_steps_too_many() -> bool:
    tree = merkle.tree_hash([b"a"])
    return not merkle.stands(b"a", 0, 1, [tree], tree)


def _a_long_receipt_is_not_read() -> bool:
    return _refused("bytes where at most", lambda: receipts.decode_receipt(bytes((7 << 20) + 1)))


def _a_receipt_is_of_its_record() -> bool:
    more = replace(_receipt(), checked=_receipt().checked + 1)
    return _refused("does not certify", lambda: receipts.examine(more))


def _a_certificate_is_of_its_record() -> bool:
    other = replace(_receipt().decided, certificate=_chain().ledger[CERTIFIES + 1].certificate)
    return _refused("another record", lambda: receipts.examine(replace(_receipt(), decided=other)))


def _each_signer_signs_once() -> bool:
    certificate = _receipt().decided.certificate
    twice = replace(certificate, ballots=certificate.ballots[:1] * 3)
    decided = replace(_receipt().decided, certificate=twice)
    return _refused("each once", lambda: receipts.examine(replace(_receipt(), decided=decided)))


def _a_named_record_is_this_one() -> bool:
    other = replace(_receipt().anchor, record=_chain().ledger.head)
    swarm = _chain().manifest.swarm
    return _refused("another record", lambda: receipts.against_checkpoint(_receipt(), swarm, other))


def _a_link_is_to_this_swarm() -> bool:
    elsewhere = VouchedChain(0, seed=9).manifest.swarm
    anchor = _receipt().anchor
    return _refused(
        "another swarm", lambda: receipts.against_checkpoint(_receipt(), elsewhere, anchor)
    )


def _a_chain_takes_the_certificate() -> bool:
    """Whoever has votes must have signed it, though the record is the chain's."""
    certificate = _receipt().decided.certificate
    few = replace(certificate, ballots=())
    decided = replace(_receipt().decided, certificate=few)
    return _refused(
        "no quorum",
        lambda: receipts.against_chain(replace(_receipt(), decided=decided), _chain().ledger),
    )


RULES = (
    Rule(
        "a record certifies contributions",
        _a_record_lacks_the_account,
        put(ledger, "check_root", lambda record, work: None),
    ),
    Rule(
        "a record certifies those of the chain",
        _a_record_has_another_account,
        edited(
            ledger,
            "check_root",
            ("record.contributions != due", "len(record.contributions) != len(due)"),
        ),
    ),
    Rule(
        "contributions beside snapshots alone",
        _a_record_has_one_where_none_is_due,
        edited(checked, "root_due", (" or snapshot is None", "")),
    ),
    Rule(
        "who is alone is checked by nobody",
        _nobody_vouches_for_who_is_alone,
        edited(
            Accounts,
            "_begin_term",
            (
                "account.vouch(round_, None)",
                "self.contributions = self.contributions.after({}, {peer: account.vouch(round_, None)})",
            ),
        ),
    ),
    Rule(
        "a look that passes is counted",
        _who_looks_vouches,
        edited(Accounts, "_look", ("return sequences", "return 0")),
    ),
    Rule(
        "contributions are shared by rounds",
        _what_is_shared_is_not_copied,
        edited(Contributions, "after", ("_APART * len(fresh) > len(self._settled)", "True")),
    ),
    Rule(
        "a tree has one size",
        _a_tree_has_one_size,
        edited(merkle, "_closed", ('size.to_bytes(8, "big") + ', "")),
    ),
    Rule(
        "a proof has one length",
        _a_proof_has_no_steps_too_many,
        edited(merkle, "stands", ("next(rest, None) is None and ", "")),
    ),
    Rule(
        "no longer receipt is read",
        _a_long_receipt_is_not_read,
        put(receipts, "MAX_RECEIPT_BYTES", 1 << 40),
    ),
    Rule(
        "a claim is its peer's word",
        _a_claim_is_signed,
        edited(receipts, "examine", ("if claim is not None", "if False")),
    ),
    Rule(
        "a receipt is what the record certifies",
        _a_receipt_is_of_its_record,
        edited(receipts, "examine", ("or not proven", "")),
    ),
    Rule(
        "a receipt's certificate is of its record",
        _a_certificate_is_of_its_record,
        edited(receipts, "examine", ("about != (", "about == (")),
    ),
    Rule(
        "a receipt's signers are different ones",
        _each_signer_signs_once,
        edited(receipts, "examine", ("peers != sorted(set(peers))", "False")),
    ),
    Rule(
        "a link names the receipt's record",
        _a_named_record_is_this_one,
        edited(receipts, "against_checkpoint", ("known != receipt.anchor", "False")),
    ),
    Rule(
        "a link is to the receipt's swarm",
        _a_link_is_to_this_swarm,
        edited(receipts, "against_checkpoint", ("receipt.swarm != swarm", "False")),
    ),
    Rule(
        "a chain takes a receipt's certificate",
        _a_chain_takes_the_certificate,
        edited(
            receipts,
            "against_chain",
            ("ledger.truncated(round_).append(receipt.decided)", "pass"),
        ),
    ),
)
