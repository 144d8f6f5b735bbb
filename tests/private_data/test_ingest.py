"""A member's own files: read by the swarm's schema, kept apart, read again when they change."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.private_data.ingest_client import read_files
from distro_node.node.private_data.store import PrivateFolder, PrivateIndex, read_index
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.tasks.data import Corpus
from distro_node.protocol.wire.manifest import Manifest, OptimizerSpec, PrivateSpec
from simulation.toy import toy_manifest
from trainer.support import store_byte_tokenizer

LENGTH = 16


class Member:
    """A member's disk: the swarm's manifest and tokenizer, and a folder for its own data."""

    def __init__(self, root: Path, **schema: Any) -> None:
        self.root = root
        self.blobs = BlobStore(root / "blobs")
        toy = toy_manifest()
        spec = PrivateSpec(**({"epoch": 1000, "raw_bytes": True} | schema))
        data = replace(
            toy.data,
            sequence_length=LENGTH,
            token_bytes=1,
            vocabulary=256,
            shards=(),
            tokenizer=store_byte_tokenizer(self.blobs),
            private=spec,
        )
        self.manifest: Manifest = replace(
            toy, data=data, optimizer=OptimizerSpec(outlier_filter=False)
        )
        (root / "manifest").write_bytes(self.manifest.encode())
        self.folder = PrivateFolder(root / "private")
        self.files = root / "files"
        self.files.mkdir()
        self.said: list[str] = []

    async def read(self, *paths: Path) -> PrivateIndex:
        return await read_files(
            self.root / "manifest",
            self.blobs.root,
            paths or (self.files,),
            self.folder,
            lambda progress: self.said.append(progress.what),
        )

    def tokens(self, own: PrivateIndex) -> bytes:
        store = self.folder.blobs(own.name)
        count = own.samples(self.manifest.data)
        read = Corpus(self.manifest.data, self.blobs, (store, own.shards)).training(range(count))
        return b"".join(sample[:LENGTH] for sample in read)


async def refused(member: Member, *paths: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        await member.read(*paths)
    return caught.value


async def test_files_become_sequences_and_stay_apart(tmp_path: Path) -> None:
    member = Member(tmp_path)
    before = {*member.blobs.ids()}
    (member.files / "diary.txt").write_text("nobody else reads this, not ever. " * 30)
    own = await member.read()
    assert own.documents == 1
    assert member.tokens(own).startswith(b"nobody else reads this")
    assert {*member.blobs.ids()} == before
    assert oct(member.folder.root.stat().st_mode & 0o777) == "0o700"


async def test_what_is_there_is_not_read_again_and_what_has_changed_is(tmp_path: Path) -> None:
    member = Member(tmp_path)
    diary = member.files / "diary.txt"
    diary.write_text("as it was. " * 30)
    first = await member.read()
    made = (member.folder.index).stat().st_mtime_ns
    assert await member.read() == first
    assert member.folder.index.stat().st_mtime_ns == made
    diary.write_text("otherwise. " * 30)
    os.utime(diary, ns=(1, 1))
    second = await member.read()
    assert second.name != first.name
    assert member.tokens(second).startswith(b"otherwise")
    # The old one's tokens are gone.
    assert [path.name for path in member.folder.stores.iterdir()] == [second.name]
    (member.files / "more.txt").write_text("and more. " * 30)
    assert (await member.read()).documents == 2


async def test_what_the_disk_has_lost_is_read_again(tmp_path: Path) -> None:
    member = Member(tmp_path)
    (member.files / "diary.txt").write_text("as it was. " * 30)
    own = await member.read()
    member.folder.blobs(own.name).remove(own.shards[0].blob)
    assert read_index(member.folder) is None
    assert await member.read() == own
    assert member.tokens(own).startswith(b"as it was")


async def test_rows_by_the_swarms_schema(tmp_path: Path) -> None:
    member = Member(tmp_path, template="{title}: {body}", end=(10,), max_bad=1)
    rows = [
        {"title": "one", "body": "b" * 40},
        {"title": "two"},
        {"title": "three", "body": "c" * 40},
    ]
    (member.files / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    own = await member.read()
    assert (own.documents, own.bad) == (2, 1)
    (member.files / "picture.jpg").write_bytes(b"x")
    (member.files / "b\udcff.jsonl").write_text('{"title": "", "body": ""}\n' * 2 + "{\n")
    with pytest.raises(UserError, match="max_bad is 1"):
        await member.read()
    (member.files / "b\udcff.jsonl").write_text("")
    own = await member.read()
    assert own.summary(names=False) == (
        "your own data: 2 documents; left out: 1 file with an unknown ending, 1 file empty, 1 bad row"
    )
    assert own.summary(names=True) == (
        "your own data: 2 documents; left out: 1 file with an unknown ending (picture.jpg), "
        "1 file empty (b?.jsonl), 1 bad row (rows.jsonl, line 2)"
    )
    # It is kept with the data.
    assert await member.read() == own
    assert member.tokens(own).startswith(b"one: bbbb")


async def test_a_wrong_column_is_one_line(tmp_path: Path) -> None:
    member = Member(tmp_path, text="body")
    (member.files / "rows.csv").write_text("title,text\na,b\n")
    error = await refused(member)
    assert error.code == ExitCode.DATA_MISSING
    assert "no column 'body'" in error.problem
    assert "--data" in error.remedy


async def test_too_little_nothing_and_no_text_are_one_line_each(tmp_path: Path) -> None:
    member = Member(tmp_path)
    assert (await refused(member)).code == ExitCode.DATA_MISSING
    (member.files / "short.txt").write_text("short")
    error = await refused(member)
    assert "shorter than one sequence" in error.problem
    assert error.code == ExitCode.DATA_MISSING
    picture = tmp_path / "picture.txt"
    picture.write_bytes(bytes(range(256)) * 10)
    assert "is not text" in (await refused(member, picture)).problem


async def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    member = Member(tmp_path, raw_bytes=False)
    (member.files / "diary.txt").write_text("as it was. " * 30)
    wrong = replace(
        member.manifest, data=replace(member.manifest.data, vocabulary=300, token_bytes=2)
    )
    (tmp_path / "manifest").write_bytes(wrong.encode())
    error = await refused(member)
    assert error.code == ExitCode.MANIFEST
    assert "vocabulary" in error.problem
