"""A checkpoint brings its own tokenizer, with its special tokens; any other is refused in a line."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from distro_node.node.create.checkpoint import (
    check_fit,
    settings_for,
    tokenizer_file,
)
from distro_node.node.create.conversations import ConversationTokenizer
from distro_node.node.create.corpus import end_tokens
from distro_node.node.create.manifest_file import read_manifest_file
from distro_node.node.create.tokens import ByteTokenizer, FileTokenizer
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.training.chat import ChatTemplate
from distro_node.node.training.tokenizer_settings import TokenizerSettings, decode_settings

TEMPLATE = "{{ messages }}"


def write_tokenizer(path: Path, *special: str, words: int = 10) -> None:
    vocabulary = {f"w{number}": number for number in range(words)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in special])
    path.parent.mkdir(exist_ok=True)
    path.write_text(made.to_str())


class Founder:
    """A manifest file, and what follows from it."""

    def __init__(self, root: Path, model: str = 'checkpoint = "base"', data: str = "") -> None:
        self.path = root / "run.toml"
        self.path.write_text(f'name = "a"\n[model]\n{model}\n[data]\nsequence_length = 8\n{data}\n')
        self.file = read_manifest_file(self.path)

    def settings(self) -> TokenizerSettings:
        source = tokenizer_file(self.file, self.path)
        tokenizer = ByteTokenizer() if source is None else FileTokenizer(source)
        return settings_for(tokenizer, source, self.file, self.path)

    def refusal(self) -> str:
        with pytest.raises(UserError) as refused:
            self.settings()
        assert refused.value.code == ExitCode.MANIFEST
        assert refused.value.remedy
        return refused.value.problem


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Return a checkpoint's directory with its tokenizer."""
    write_tokenizer(tmp_path / "base" / "tokenizer.json", "<end>", "<begin>")
    return tmp_path / "base"


def configure(base: Path, **keys: Any) -> None:
    (base / "tokenizer_config.json").write_text(json.dumps(keys))


def test_a_checkpoint_brings_its_own(tmp_path: Path, base: Path) -> None:
    configure(base, eos_token={"content": "<end>"}, bos_token="<begin>", chat_template=TEMPLATE)
    founder = Founder(tmp_path)
    assert tokenizer_file(founder.file, founder.path) == base / "tokenizer.json"
    settings = founder.settings()
    assert settings == TokenizerSettings(
        eos_token="<end>", bos_token="<begin>", chat_template=TEMPLATE
    )
    # The separator between documents is the one that the model was trained with.
    tokenizer = FileTokenizer(base / "tokenizer.json")
    assert end_tokens(founder.file.data, tokenizer, founder.path) == (10,)


DATED = "{{ strftime_now('%d %B %Y') }}{{ messages }}"


def test_a_template_that_writes_the_date_has_one_for_all(tmp_path: Path, base: Path) -> None:
    configure(base, chat_template=DATED)
    today = date.today().isoformat()
    assert Founder(tmp_path).settings().chat_date in (today, date.today().isoformat())
    said = Founder(tmp_path, data='chat_date = "2024-02-29"').settings()
    assert said.chat_date == "2024-02-29"
    # The date is distributed to the members with the template.
    there = decode_settings(said.encode())
    assert ChatTemplate(there).text([]) == "29 February 2024[]"
    for day in ("2023-02-29", "29.2.2024!"):
        refusal = Founder(tmp_path, data=f'chat_date = "{day}"').refusal()
        assert f"data.chat_date: {day!r} is not a date" in refusal
    configure(base, chat_template=TEMPLATE)
    assert Founder(tmp_path).settings().chat_date is None
    assert (
        "the chat template writes no date"
        in Founder(tmp_path, data='chat_date = "2024-02-29"').refusal()
    )


def test_a_template_may_lie_in_a_file_or_have_a_name(tmp_path: Path, base: Path) -> None:
    named = [{"name": "tools", "template": "x"}, {"name": "default", "template": TEMPLATE}]
    configure(base, eos_token="<end>", chat_template=named)
    assert Founder(tmp_path).settings().chat_template == TEMPLATE
    (base / "chat_template.jinja").write_text("{{ other }}")
    assert Founder(tmp_path).settings().chat_template == "{{ other }}"


@pytest.mark.parametrize("named", ["bytes", "other/tokenizer.json"])
def test_another_tokenizer_than_the_checkpoints_is_refused(
    tmp_path: Path, base: Path, named: str
) -> None:
    write_tokenizer(tmp_path / "other" / "tokenizer.json", "<end>", words=9)
    configure(base, eos_token="<end>")
    problem = Founder(tmp_path, data=f'tokenizer = "{named}"').refusal()
    assert "not the tokenizer that the checkpoint was trained with" in problem
    # The same tokenizer at another path is not a different one.
    (tmp_path / "same.json").write_bytes((base / "tokenizer.json").read_bytes())
    assert Founder(tmp_path, data='tokenizer = "same.json"').settings().eos_token == "<end>"


def test_without_an_end_token_something_has_to_stand_between_documents(
    tmp_path: Path, base: Path
) -> None:
    founder = Founder(tmp_path)
    with pytest.raises(UserError, match="document_end") as refused:
        end_tokens(founder.file.data, FileTokenizer(base / "tokenizer.json"), founder.path)
    assert refused.value.code == ExitCode.MANIFEST
    assert Founder(tmp_path, data='document_end = "<end>"').settings().eos_token == "<end>"
    assert Founder(tmp_path, data='document_end = "w1 w2"').settings().eos_token is None
    write_tokenizer(base / "tokenizer.json", "</s>")
    assert Founder(tmp_path).settings().eos_token == "</s>"


def test_a_tokenizer_without_a_file_asks_no_directory(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took the end token from `tokenizer_config.json` of whatever directory the command ran in."""
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "w1"}')
    monkeypatch.chdir(tmp_path)
    from_file = FileTokenizer(base / "tokenizer.json")
    copied = FileTokenizer.of(from_file.definition)
    assert (from_file.end_token(), copied.end_token()) == (None, None)
    assert ConversationTokenizer(copied, None).end_token() is None
    here = FileTokenizer((base / "tokenizer.json").rename(tmp_path / "tokenizer.json"))
    assert here.end_token() == ConversationTokenizer(here, None).end_token() == "w1"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"eos_token": "<nowhere>"}, "no token '<nowhere>'"),
        ({"eos_token": 5}, "eos_token"),
        ({"eos_token": "<end>", "chat_template": "x" * (1 << 20)}, "chat_template"),
    ],
)
def test_settings_that_cannot_be_meant(
    tmp_path: Path, base: Path, keys: dict[str, Any], words: str
) -> None:
    configure(base, **keys)
    assert words in Founder(tmp_path).refusal()


def test_broken_settings(tmp_path: Path, base: Path) -> None:
    for text in ("{", "[" * 100_000, "[]"):
        (base / "tokenizer_config.json").write_text(text)
        assert "tokenizer_config.json" in Founder(tmp_path).refusal()


def test_a_checkpoint_without_a_tokenizer_takes_one_of_about_its_size(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    founder = Founder(tmp_path)
    assert tokenizer_file(founder.file, founder.path) is None
    check_fit(300, ByteTokenizer(), founder.file, founder.path)
    with pytest.raises(UserError, match="2,000") as refused:
        check_fit(2000, ByteTokenizer(), founder.file, founder.path)
    assert refused.value.code == ExitCode.MANIFEST
    new = Founder(tmp_path, model='model_type = "llama"')
    check_fit(2000, ByteTokenizer(), new.file, new.path)


def test_a_new_model_takes_what_is_named(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer.json", "[EOS]", "[PAD]")
    model = 'model_type = "llama"'
    assert Founder(tmp_path, model).settings() == TokenizerSettings()
    named = Founder(tmp_path, model, 'tokenizer = "tokenizer.json"')
    assert named.settings() == TokenizerSettings(eos_token="[EOS]", pad_token="[PAD]")
