"""One choice of what a document starts with, from the founder's file to an exported tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from distro_node.crypto.identity import PeerId
from distro_node.node.create import documents
from distro_node.node.create.borders import Borders
from distro_node.node.create.manifest_draft import ManifestDraft, read_draft
from distro_node.node.create.tokens import ByteTokenizer
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.private_data.ingest import read_own
from distro_node.node.private_data.store import PrivateFolder
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.trainer.models.export import export
from distro_node.node.trainer.models.initial_parameters import initialise
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.answers import InitialModel
from distro_node.node.training.post_processor import AddedTokens, UnknownPostProcessor, added_tokens
from distro_node.protocol.wire.blobs import decode_any_blob_list, decode_blob_list
from distro_node.protocol.wire.manifest import AdmissionSpec, Manifest, ShardSpec
from tokenizers import processors
from trainer.support import CPU, write_text
from transformers import AutoTokenizer

START, END, MASK = 256, 257, 258
SPECIAL = ["<s>", "</s>", "[MASK]"]
SIZES = "hidden_size = 32\nintermediate_size = 48\nnum_hidden_layers = 1\nnum_attention_heads = 2\n"
LLAMA = f'model_type = "llama"\n{SIZES}max_position_embeddings = 2048\n'
BERT = f'model_type = "bert"\n{SIZES}'
TEXTS = [f"text {number} of one who counts" for number in range(60)]
CHATML = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
WRITES_START = "{{ bos_token }}" + CHATML
TALK = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
BOTH_SIDES = processors.TemplateProcessing(
    single="<s> $A </s>",
    pair="<s> $A </s> $B </s>",
    special_tokens=[("<s>", START), ("</s>", END)],
)
BEFORE = processors.TemplateProcessing(
    single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", START)]
)


class Founder:
    """Makes swarms, models and exports of files in a folder."""

    def __init__(self, root: Path, processor: Any = None, **config: Any) -> None:
        self.root = root
        library = tokenizers.Tokenizer.from_str(ByteTokenizer().definition.decode())
        library.add_special_tokens(SPECIAL)
        if processor is not None:
            library.post_processor = processor
        library.save(str(root / "tokenizer.json"))
        named = {"eos_token": "</s>", "bos_token": "<s>"} | config
        (root / "tokenizer_config.json").write_text(json.dumps(named))
        rows = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
        (root / "texts.jsonl").write_text(rows)
        self.data = DataDir(root / "data")
        self.data.create()
        self.store = BlobStore(self.data.blobs)

    def draft(self, *keys: str, task: str = "causal_lm", model: str = LLAMA) -> ManifestDraft:
        path = self.root / "run.toml"
        keys = (*keys, 'paths = ["texts.jsonl"]') if not any("paths" in k for k in keys) else keys
        lines = "\n".join(
            [
                'tokenizer = "tokenizer.json"',
                "sequence_length = 64",
                "heldout_fraction = 0.25",
                *keys,
            ]
        )
        path.write_text(
            f'name = "a"\ntask = "{task}"\n[model]\n{model}[data]\n{lines}\n'
            "[optimizer]\npreconditioner = 'orthogonal'\noutlier_filter = false\n"
        )
        return read_draft(path, ())

    def refused(self, *keys: str, **options: Any) -> str:
        with pytest.raises(UserError) as refused:
            self.manifest(self.draft(*keys, **options))
        assert refused.value.code in (ExitCode.MANIFEST, ExitCode.DATA_MISSING)
        return f"{refused.value.problem}; {refused.value.remedy}"

    def manifest(self, draft: ManifestDraft) -> Manifest:
        corpus = draft.corpus(self.data, lambda *_: None)
        shards, heldout = corpus.store(self.store, lambda *_: None)
        made = initialise(draft.model, 0, None, self.store, CPU)
        model = InitialModel(tuple(made.table), made.blobs.encode(), made.blobs.size)
        everybody = AdmissionSpec()
        return draft.manifest(
            self.store, None, shards, heldout, model, everybody, PeerId(bytes(32))
        )

    def session(self, draft: ManifestDraft) -> TrainingSession:
        manifest = self.manifest(draft)
        session = TrainingSession(manifest, self.store, CPU)
        session.load(decode_any_blob_list(self.store.get(manifest.initial) or b"").chunks)
        return session

    def tokens(self, manifest: Manifest) -> np.ndarray:
        """All tokens of the swarm, those held out, too."""
        return tokens_of(self.store, manifest, (*manifest.data.shards, manifest.data.heldout))

    def exported(self, session: TrainingSession) -> Any:
        export(session, self.store, self.root / "out")
        return AutoTokenizer.from_pretrained(self.root / "out")


def tokens_of(store: BlobStore, manifest: Manifest, shards: Sequence[ShardSpec]) -> np.ndarray:
    width = manifest.data.token_bytes
    found = b""
    for shard in shards:
        blobs = decode_blob_list(store.get(shard.blob) or b"", "shard", shard.tokens * width)
        found += b"".join(store.get(chunk) or b"" for chunk in blobs.chunks)
    numbers = np.frombuffer(found, f"<u{width}").astype(np.int64)
    return numbers & ((1 << 8 * width - 2) - 1) if manifest.data.marked else numbers


def documents_of(tokens: np.ndarray) -> list[list[int]]:
    """Documents that end with the end token, which is left out."""
    return [part.tolist() for part in np.split(tokens, np.flatnonzero(tokens == END) + 1)][:-1]


class Parrot(torch.nn.Module):
    """A model that says the end token, and keeps what it was given."""

    def __init__(self, session: TrainingSession) -> None:
        super().__init__()
        self.config = session.model.config
        self.asked: list[int] = []

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        self.asked += input_ids[0].tolist()
        logits = torch.zeros(1, input_ids.shape[1], len(SPECIAL) + 256)
        logits[0, -1, END] = 9.0
        return type("Answer", (), {"logits": logits, "past_key_values": None})()


def asked(founder: Founder, session: TrainingSession, prompt: str) -> list[int]:
    """What the model is given of a beginning."""
    parrot = Parrot(session)
    session.model = parrot  # type: ignore[assignment]  # all that writing asks of it
    assert list(write_text(session, founder.store, prompt, 0, 0.0, 5)) == []
    return parrot.asked


# What the tokenizer does by itself, and with what it says so.
BY_ITSELF: list[tuple[Any, dict[str, Any], bool]] = [
    (None, {}, False),
    (BEFORE, {}, True),
    (BOTH_SIDES, {}, True),
    (processors.Sequence([processors.ByteLevel(), BEFORE]), {}, True),
    (processors.ByteLevel(), {}, False),
    (None, {"add_bos_token": True}, True),
    (None, {"tokenizer_class": "LlamaTokenizerFast"}, True),
    (None, {"add_bos_token": False, "tokenizer_class": "GemmaTokenizer"}, False),
    (BEFORE, {"add_bos_token": False}, False),
]


@pytest.mark.parametrize(("processor", "config", "adds"), BY_ITSELF)
def test_without_a_choice_it_is_as_the_tokenizer_does(
    tmp_path: Path, processor: Any, config: dict[str, Any], adds: bool
) -> None:
    founder = Founder(tmp_path, processor, **config)
    start = founder.draft().start
    assert start.token == (START if adds else None)
    assert "the tokenizer adds" in start.reason
    line = founder.draft().borders_line()
    assert line.startswith(f"a document starts with {'<s>' if adds else 'no token of its own'} (")
    assert line.endswith("and ends with </s>")


@pytest.mark.parametrize("processor", [None, BEFORE, BOTH_SIDES, processors.ByteLevel()])
@pytest.mark.parametrize("said", [None, "bos", "none"])
def test_an_export_makes_of_a_text_what_training_made_of_it(
    tmp_path: Path, processor: Any, said: str | None
) -> None:
    founder = Founder(tmp_path, processor)
    session = founder.session(
        founder.draft(*([] if said is None else [f'document_start = "{said}"']))
    )
    added = processor in (BEFORE, BOTH_SIDES) if said is None else said == "bos"
    manifest = session.manifest
    assert manifest.data.start_token == (START if added else None)
    assert manifest.data.end_token == END

    trained = documents_of(founder.tokens(manifest))
    plain = [[*text.encode()] for text in TEXTS]
    before = [START] if added else []
    assert sorted(trained) == sorted([*before, *ids, END] for ids in plain)
    tokenizer = founder.exported(session)
    assert sorted([*tokenizer(text)["input_ids"], END] for text in TEXTS) == sorted(trained)
    # Both of a pair, too.
    assert tokenizer("a", "b")["input_ids"] == [*before, ord("a"), *before, ord("b")]
    assert tokenizer.decode(tokenizer("a")["input_ids"], skip_special_tokens=True) == "a"
    table = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert (table["add_bos_token"], table["add_eos_token"]) == (added, False)
    # So does `generate`, which asks the model itself.
    assert asked(founder, session, TEXTS[0]) == tokenizer(TEXTS[0])["input_ids"]
    # An empty one follows the start token, or another document.
    assert asked(founder, session, "") == [START if added else END]
    # A copy of it has the start token.
    assert asked(founder, session, "<s>a") == [START, ord("a")]


def test_a_tokenizer_that_does_it_already_stays_as_it_is(tmp_path: Path) -> None:
    founder = Founder(tmp_path, BEFORE)
    founder.exported(founder.session(founder.draft()))
    written = (tmp_path / "out" / "tokenizer.json").read_bytes()
    assert written == (tmp_path / "tokenizer.json").read_bytes()


def test_the_token_between_two_documents_may_be_both(tmp_path: Path) -> None:
    founder = Founder(tmp_path, bos_token="</s>")
    session = founder.session(founder.draft('document_start = "bos"'))
    assert (session.manifest.data.start_token, session.manifest.data.end_token) == (END, END)
    trained = documents_of(founder.tokens(session.manifest))
    assert sorted(trained) == sorted([*text.encode(), END] for text in TEXTS)
    assert founder.exported(session)("a")["input_ids"] == [END, ord("a")]
    assert asked(founder, session, "a") == [END, ord("a")]


def test_a_long_text_starts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_MAX_DOCUMENT_BYTES", 512)
    founder = Founder(tmp_path, BEFORE)
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text("".join(f"line {n} of {name}\n" for n in range(400)))
    tokens = founder.tokens(founder.manifest(founder.draft('paths = ["one.txt", "two.txt"]')))
    assert (tokens == START).sum() == (tokens == END).sum() == 2


def test_a_text_that_spells_it_out_has_it_once(tmp_path: Path) -> None:
    founder = Founder(tmp_path, BEFORE)
    rows = "".join(json.dumps({"text": f"<s>{text}"}) + "\n" for text in TEXTS)
    (tmp_path / "texts.jsonl").write_text(rows)
    trained = documents_of(founder.tokens(founder.manifest(founder.draft())))
    assert sorted(trained) == sorted([START, *text.encode(), END] for text in TEXTS)


class TestArraysOfTokens:
    WITH, WITHOUT, ALONE = (
        np.concatenate([[*before, *text.encode(), *after] for text in TEXTS]).astype("<u2")
        for before, after in (([START], [END]), ([], [END]), ([START], []))
    )
    # Whether the last of them is complete is unknown.
    ALONE = np.append(ALONE, END).astype("<u2")

    @pytest.mark.parametrize(("array", "lacked"), [(WITH, 0), (WITHOUT, len(TEXTS)), (ALONE, 0)])
    def test_each_document_gets_what_it_lacks(
        self, tmp_path: Path, array: np.ndarray, lacked: int
    ) -> None:
        founder = Founder(tmp_path, BEFORE)
        array.tofile(tmp_path / "array.bin")
        draft = founder.draft('paths = ["array.bin"]', 'format = "tokens"')
        trained = documents_of(founder.tokens(founder.manifest(draft)))
        assert sorted(trained) == sorted([START, *text.encode(), END] for text in TEXTS)
        summary = draft.corpus(founder.data, lambda *_: None).summary
        assert summary.sources[0].read.unstarted == lacked
        told = [line for line in summary.lines() if "start token" in line]
        assert bool(told) == bool(lacked)

    def test_one_with_it_is_refused_where_nothing_else_has_it(self, tmp_path: Path) -> None:
        founder = Founder(tmp_path)
        self.WITH.tofile(tmp_path / "array.bin")
        paths = 'paths = ["array.bin"]', 'format = "tokens"'
        for said in ([], ['document_start = "none"']):
            told = founder.refused(*paths, *said)
            assert "array.bin: has the start token (256) before its documents" in told
            assert 'document_start = "bos"' in told
        trained = documents_of(
            founder.tokens(founder.manifest(founder.draft(*paths, 'document_start = "bos"')))
        )
        assert sorted(trained) == sorted([START, *text.encode(), END] for text in TEXTS)

    def test_one_token_for_both_is_no_start_of_others(self) -> None:
        assert Borders((END,), None, END).unwanted is None
        assert Borders((END,), None, START).unwanted == START
        assert Borders((END,), START, START).unwanted is None


class TestConversations:
    @pytest.fixture(params=[WRITES_START, CHATML])
    def template(self, request: pytest.FixtureRequest) -> str:
        return request.param

    @pytest.fixture
    def founder(self, tmp_path: Path, template: str) -> Founder:
        founder = Founder(tmp_path, BEFORE, chat_template=template)
        rows = "".join(
            json.dumps({"messages": [{**TALK[0], "content": text}, TALK[1]]}) + "\n"
            for text in TEXTS
        )
        (tmp_path / "texts.jsonl").write_text(rows)
        return founder

    def test_they_start_as_the_template_writes_them(self, founder: Founder, template: str) -> None:
        writes = template == WRITES_START
        session = founder.session(founder.draft(task="sft"))
        assert session.manifest.data.start_token == (START if writes else None)
        tokenizer = founder.exported(session)
        tokens = founder.tokens(session.manifest)
        assert (tokens == START).sum() == (len(TEXTS) if writes else 0)
        for text in TEXTS:
            talk = [{**TALK[0], "content": text}, TALK[1]]
            ids = tokenizer.apply_chat_template(talk, return_dict=False)
            assert ids[:1] == ([START] if writes else [ord("[")])
            assert any((tokens[at : at + len(ids)] == ids).all() for at in range(len(tokens)))
        # A user's question is handled in the same way.
        question = tokenizer.apply_chat_template(
            TALK[:1], return_dict=False, add_generation_prompt=True
        )
        assert asked(founder, session, "Why?") == question
        # And a plain text starts as all that it has learned from did.
        assert tokenizer("a")["input_ids"] == ([START] if writes else []) + [ord("a")]

    def test_another_choice_than_the_templates_is_refused(
        self, founder: Founder, template: str
    ) -> None:
        writes = template == WRITES_START
        said = "none" if writes else "bos"
        told = founder.refused(f'document_start = "{said}"', task="sft")
        assert "the chat template decides how conversations start" in told
        assert ("remove it" if writes else "put {{ bos_token }} first") in told
        said = "bos" if writes else "none"
        assert founder.draft(f'document_start = "{said}"', task="sft").start.token == (
            START if writes else None
        )


def test_a_model_that_fills_gaps_has_both_sides(tmp_path: Path) -> None:
    founder = Founder(tmp_path, BOTH_SIDES, cls_token="<s>", sep_token="</s>", mask_token="[MASK]")
    session = founder.session(founder.draft(task="masked_lm", model=BERT))
    tokenizer = founder.exported(session)
    trained = documents_of(founder.tokens(session.manifest))
    assert sorted(trained) == sorted(tokenizer(text)["input_ids"] for text in TEXTS)
    assert trained[0][0] == START
    assert "add_bos_token" not in (tmp_path / "out" / "tokenizer_config.json").read_text()
    none = founder.session(founder.draft('document_start = "none"', task="masked_lm", model=BERT))
    assert founder.exported(none)("a")["input_ids"] == [ord("a"), END]


@pytest.mark.parametrize("said", ["bos", "none"])
def test_members_own_data_start_alike(tmp_path: Path, said: str) -> None:
    founder = Founder(tmp_path)
    draft = founder.draft(f'document_start = "{said}"', 'policy = "private"')
    corpus = draft.corpus(founder.data, lambda *_: None)
    _, (heldout, *_) = corpus.store_wanted(founder.store, lambda *_: None)
    made = initialise(draft.model, 0, None, founder.store, CPU)
    model = InitialModel(tuple(made.table), made.blobs.encode(), made.blobs.size)
    manifest = draft.manifest(
        founder.store, None, [], heldout, model, AdmissionSpec(), PeerId(bytes(32))
    )
    public = tokens_of(founder.store, manifest, [heldout])
    own = tmp_path / "own"
    read = read_own(manifest, founder.store, [tmp_path / "texts.jsonl"], own, lambda *_: None)
    private = tokens_of(PrivateFolder(own).blobs(read.name), manifest, read.shards)
    expected = len(TEXTS) if said == "bos" else 0
    assert ((public == START).sum(), (private == START).sum()) == (expected, expected)
    # Members also refuse an array with start tokens where the swarm has none.
    np.save(tmp_path / "array.npy", TestArraysOfTokens.WITH)
    private = replace(manifest.data.private, format="tokens")  # type: ignore[type-var]  # it is there
    manifest = replace(manifest, data=replace(manifest.data, private=private))
    if said == "bos":
        read_own(manifest, founder.store, [tmp_path / "array.npy"], own, lambda *_: None)
        return
    with pytest.raises(UserError, match="has the start token"):
        read_own(manifest, founder.store, [tmp_path / "array.npy"], own, lambda *_: None)


def test_what_a_choice_needs(tmp_path: Path) -> None:
    founder = Founder(tmp_path, bos_token=None)
    (tmp_path / "tokenizer.json").write_text(
        (tmp_path / "tokenizer.json").read_text().replace("<s>", "<t>")
    )
    assert "names no token that starts a text" in founder.refused('document_start = "bos"')
    # The model's configuration may name it.
    named = founder.draft('document_start = "bos"', model=LLAMA + "bos_token_id = 256\n")
    assert (named.start.token, named.special.bos_token) == (START, "<t>")
    with pytest.raises(UserError, match="document_start"):
        founder.draft('document_start = "<s>"')
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": 1}')
    assert "add_bos_token: must be true or false" in founder.refused()
    path = tmp_path / "run.toml"
    path.write_text(
        f'name = "a"\n[model]\n{LLAMA}[data]\nsequence_length = 8\npaths = ["texts.jsonl"]\n'
        'document_start = "bos"\n'
    )
    with pytest.raises(UserError, match="bytes have no token that starts a text"):
        read_draft(path, ())


def test_a_tokenizer_that_puts_two_tokens_there_is_reported(tmp_path: Path) -> None:
    two = processors.TemplateProcessing(
        single="[MASK] <s> $A", pair=None, special_tokens=[("[MASK]", MASK), ("<s>", START)]
    )
    founder = Founder(tmp_path, two)
    start = founder.draft().start
    assert start.token is None
    assert start.reason == "the tokenizer puts 2 tokens there, and only one is possible"
    assert founder.draft('document_start = "bos"').start.token == START


@pytest.mark.parametrize("family", ["gemma", "gemma2", "gemma3_text"])
def test_gemma_is_warned_of(tmp_path: Path, family: str) -> None:
    gemma = LLAMA.replace("llama", family)
    founder = Founder(tmp_path, chat_template=CHATML)

    def warned(*keys: str, task: str = "causal_lm", model: str = gemma) -> str | None:
        draft = founder.draft(*keys, task=task, model=model)
        talks = draft.task.chat is not None
        return draft.start.warning(draft.model["model_type"], conversations=talks)

    assert 'set document_start = "bos"' in (warned() or "")
    assert warned('document_start = "bos"') is None
    assert warned(model=LLAMA) is None
    assert "first in the chat template" in (warned(task="sft") or "")


class TestPostProcessors:
    def read(self, processor: Any) -> AddedTokens:
        return added_tokens(json.dumps({"post_processor": processor}).encode())

    def test_each_kind_is_read(self) -> None:
        sides = {"cls": ["[CLS]", 1], "sep": ["[SEP]", 2]}
        assert self.read(None) == AddedTokens()
        assert self.read({"type": "BertProcessing", **sides}) == AddedTokens((1,), (2,))
        inner = {"type": "RobertaProcessing", **sides, "trim_offsets": True}
        outer = {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "x", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [],
            "special_tokens": {"x": {"id": "x", "ids": [8, 9], "tokens": ["8", "9"]}},
        }
        several = {"type": "Sequence", "processors": [inner, {"type": "ByteLevel"}, outer]}
        assert self.read(several) == AddedTokens((8, 9, 1), (2,))

    @pytest.mark.parametrize(
        "odd",
        [
            {"type": "Newest"},
            {"type": "BertProcessing", "sep": ["x"], "cls": []},
            {"type": "TemplateProcessing", "single": [], "special_tokens": {}},
            [],
            5,
        ],
    )
    def test_an_odd_one_is_refused(self, odd: Any) -> None:
        with pytest.raises(UnknownPostProcessor):
            self.read(odd)
        with pytest.raises(UnknownPostProcessor):
            added_tokens(b"[" * 100_000)
