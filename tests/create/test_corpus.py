"""From files to shards: which files, which part is held out, and that no token is lost."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from distro_node.node.create import corpus
from distro_node.node.create.corpus import Corpus, Piece, find_files, mixed, split, write_shards
from distro_node.node.create.tokens import ByteTokenizer, FileTokenizer
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.storage.blob_store import BlobStore
from distro_node.protocol.wire.blobs import decode_blob_list
from distro_node.protocol.wire.manifest import ShardSpec
from hypothesis import given, settings
from hypothesis import strategies as st


def write(root: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def names(files: Sequence[tuple[Path, object]]) -> list[str]:
    return [str(name) for _, name in files]


def text_of(pieces: Sequence[Piece]) -> bytes:
    return b"".join(piece.path.read_bytes()[piece.start : piece.end] for piece in pieces)


def tokens_of(store: BlobStore, shards: Sequence[ShardSpec], width: int) -> np.ndarray:
    data = b""
    for shard in shards:
        listed = store.get(shard.blob)
        assert listed is not None
        blobs = decode_blob_list(listed, "shard", shard.tokens * width)
        for chunk in blobs.chunks:
            data += store.get(chunk) or b"missing"
    return np.frombuffer(data, f"<u{width}")


class WideBytes:
    """Bytes as tokens of another width."""

    vocabulary = 256
    definition = b"{}"

    def __init__(self, width: Literal[1, 2, 4]) -> None:
        self.token_bytes: Literal[1, 2, 4] = width

    def encode(self, text: bytes) -> np.ndarray:
        return np.frombuffer(text, np.uint8)


# --- finding files -------------------------------------------------------------------------------


def test_directories_are_searched_and_files_taken(tmp_path: Path) -> None:
    root = write(
        tmp_path / "a",
        b_txt="1",
        a_txt="2",
        sub__c_md="3",
        sub__d_py="4",
        empty_txt="",
        _hidden_txt="5",
        _git__x_txt="6",
    )
    single = write(tmp_path, one_bin="7") / "one.bin"
    assert names(find_files([root, single], ["*.txt", "*.md"])) == [
        "a.txt",
        "b.txt",
        "sub/c.md",
        "one.bin",
    ]
    assert names(find_files([root], ["sub/*"])) == ["sub/c.md", "sub/d.py"]


def test_a_file_counts_once(tmp_path: Path) -> None:
    write(tmp_path, a_txt="1")
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    assert names(find_files([tmp_path / "a.txt", tmp_path, tmp_path], ["*.txt"])) == ["a.txt"]


@pytest.mark.parametrize(
    ("paths", "words"),
    [([], "no path was given"), (["none"], "no file or directory"), (["."], "patterns: *.txt")],
)
def test_missing_text_is_told(tmp_path: Path, paths: list[str], words: str) -> None:
    write(tmp_path, a_md="1", empty_txt="")
    with pytest.raises(UserError) as caught:
        find_files([tmp_path / path for path in paths], ["*.txt"])
    assert caught.value.code == ExitCode.DATA_MISSING
    assert words in caught.value.problem


# --- holding out ---------------------------------------------------------------------------------


def many(tmp_path: Path, count: int) -> list[tuple[Path, Path]]:
    rng = random.Random(1)
    root = write(tmp_path, **{f"f{i:03}_txt": rng.randbytes(500).hex() for i in range(count)})
    return [(root / f"f{i:03}.txt", Path(f"f{i:03}.txt")) for i in range(count)]


def test_many_files_are_split_by_content_wherever_they_lie(tmp_path: Path) -> None:
    files = many(tmp_path, 400)
    parts = split(files, (), 0.1)
    assert sum(piece.size for piece in parts.heldout) == pytest.approx(40_000, rel=0.5)
    assert all(piece.start == 0 and piece.last for piece in (*parts.heldout, *parts.training))
    held = {piece.path.name for piece in parts.heldout}
    assert held.isdisjoint(piece.path.name for piece in parts.training)
    for path, _ in files:
        path.rename(path.with_name(f"renamed-{path.name}"))
    moved = [(path.with_name(f"renamed-{path.name}"), name) for path, name in files]
    again = split(moved[::-1], (), 0.1)
    assert {piece.path.name.removeprefix("renamed-") for piece in again.heldout} == held


@pytest.mark.parametrize("count", [1, 3])
def test_a_few_files_each_give_their_end(tmp_path: Path, count: int) -> None:
    files = [(path, path.name) for path, _ in many(tmp_path, count)]
    for path, _ in files:
        path.write_text("".join(f"line {number}\n" for number in range(1000)))
    parts = split([(path, Path(name)) for path, name in files], (), 0.1)
    assert len(parts.training) == len(parts.heldout) == count
    for before, after in zip(parts.training, parts.heldout, strict=True):
        assert before.end == after.start
        assert text_of([after]).startswith(b"line ")
        assert after.size == pytest.approx(0.1 * (before.size + after.size), rel=0.01)
        assert (before.last, after.last) == (False, True)


@settings(max_examples=100)
@given(st.text(min_size=1, max_size=300), st.floats(0.0001, 0.5))
def test_a_cut_never_loses_text_nor_splits_a_character(
    tmp_path_factory: pytest.TempPathFactory, text: str, fraction: float
) -> None:
    file = tmp_path_factory.mktemp("cut") / "a.txt"
    file.write_bytes(text.encode())
    parts = split([(file, Path("a.txt"))], (), fraction)
    assert text_of([*parts.training, *parts.heldout]).decode() == text
    for piece in (*parts.training, *parts.heldout):
        text_of([piece]).decode()


def test_files_can_be_held_out_by_name(tmp_path: Path) -> None:
    files = [(tmp_path / name, Path(name)) for name in ("train.txt", "valid.txt")]
    for path, _ in files:
        path.write_text("x")
    parts = split(files, ["valid*"], 0.1)
    assert [piece.path.name for piece in parts.training] == ["train.txt"]
    assert [piece.path.name for piece in parts.heldout] == ["valid.txt"]
    for patterns in (["none*"], ["*.txt"]):
        with pytest.raises(UserError) as caught:
            split(files, patterns, 0.1)
        assert caught.value.code == ExitCode.DATA_MISSING


# --- mixing --------------------------------------------------------------------------------------


def test_mixing_loses_nothing_and_puts_something_of_everything_everywhere(tmp_path: Path) -> None:
    """Three books and many notes: each part of the result has some of each."""
    pieces = []
    for number in range(3):
        book = tmp_path / f"book{number}"
        book.write_bytes(b"".join(b"%d %06d\n" % (number, line) for line in range(400_000)))
        pieces.append(Piece(book, 0, book.stat().st_size, True))
    for number in range(40):
        note = tmp_path / f"note{number}"
        note.write_bytes(b"note %d" % number)
        pieces.append(Piece(note, 0, note.stat().st_size, True))
    parts = mixed(pieces)
    assert len(parts) > 150
    assert sorted(text_of(parts)) == sorted(text_of(pieces))
    # In the order of their places, the parts of each file are the file; the last one ends it.
    for piece in pieces:
        own = sorted((p for p in parts if p.path == piece.path), key=lambda part: part.start)
        assert text_of(own) == text_of([piece])
        assert [part.last for part in own] == [False] * (len(own) - 1) + [True]
        assert all(text_of([part]).endswith(b"\n") for part in own[:-1])
    for first in range(0, len(parts) - 50, 50):
        assert len({part.path for part in parts[first : first + 50] if part.size > 100}) == 3
    assert mixed(pieces) == parts
    assert mixed([]) == []


def test_text_without_lines_is_mixed_by_characters(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("ä" * 300_000)
    parts = mixed([Piece(file, 0, 600_000, True)])
    assert len(parts) > 4
    assert "".join(text_of([part]).decode() for part in parts) == "ä" * 300_000


# --- shards --------------------------------------------------------------------------------------


def stored(
    tmp_path: Path, pieces: Sequence[Piece], width: Literal[1, 2, 4] = 1, end: str = ""
) -> tuple[BlobStore, list[ShardSpec]]:
    store = BlobStore(tmp_path / "blobs")
    return store, write_shards(pieces, WideBytes(width), end, store, lambda _: None)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_shards_hold_every_token_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: Literal[1, 2, 4]
) -> None:
    monkeypatch.setattr(corpus, "SHARD_BYTES", 2 * corpus.CHUNK_BYTES)
    content = random.Random(2).randbytes(5 * corpus.CHUNK_BYTES // width + 77)
    file = tmp_path / "a"
    file.write_bytes(content)
    store, shards = stored(tmp_path, [Piece(file, 3, len(content), True)], width)
    assert len(shards) == 3
    assert tokens_of(store, shards, width).astype(np.uint8).tobytes() == content[3:]


def test_the_end_of_a_file_is_marked_and_of_a_cut_is_not(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"abcdef")
    pieces = [Piece(file, 0, 3, False), Piece(file, 3, 6, True)]
    store, shards = stored(tmp_path, pieces, end="<e>")
    assert tokens_of(store, shards, 1).tobytes() == b"abcdef<e>"


def test_progress_is_counted_in_bytes(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x\n" * 2_000_000)
    seen: list[int] = []
    store = BlobStore(tmp_path / "blobs")
    write_shards([Piece(file, 0, 4_000_000, True)], WideBytes(1), "", store, seen.append)
    assert sum(seen) == 4_000_000
    assert len(seen) > 2


def test_a_file_that_shrinks_meanwhile_is_told(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"abc")
    with pytest.raises(UserError, match="became shorter"):
        stored(tmp_path, [Piece(file, 0, 9, True)])


@settings(max_examples=60)
@given(text=st.text(st.sampled_from("a\né€😀"), max_size=60), block=st.integers(4, 20))
def test_blocks_end_where_characters_do(
    tmp_path_factory: pytest.TempPathFactory, text: str, block: int
) -> None:
    folder = tmp_path_factory.mktemp("blocks")
    file = folder / "a"
    data = text.encode()
    file.write_bytes(data)
    seen: list[bytes] = []

    class Recording(WideBytes):
        def encode(self, text: bytes) -> np.ndarray:
            text.decode()
            seen.append(text)
            return super().encode(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "_BLOCK_BYTES", block)
        piece = Piece(file, 0, len(data), True)
        write_shards([piece], Recording(1), "", BlobStore(folder / "b"), lambda _: None)
    assert b"".join(seen) == data


# --- tokenizers ----------------------------------------------------------------------------------


def test_byte_tokens_are_the_bytes(tmp_path: Path) -> None:
    tokenizer = ByteTokenizer()
    everything = bytes(range(256))
    assert tokenizer.encode(everything).tobytes() == everything
    # The definition that travels with the swarm says the same to the library.
    file = tmp_path / "tokenizer.json"
    file.write_bytes(tokenizer.definition)
    described = FileTokenizer(file)
    assert (described.vocabulary, described.token_bytes) == (256, 1)
    text = "Zeile\n\tπ ≈ 3, 😀\u00ad\x7f\x00 end"
    assert described.encode(text.encode()).tolist() == list(text.encode())
    import tokenizers

    library = tokenizers.Tokenizer.from_str(tokenizer.definition.decode())
    assert library.decode(list(text.encode())) == text


def test_a_tokenizers_own_cutting_and_padding_is_switched_off(tmp_path: Path) -> None:
    import tokenizers

    library = tokenizers.Tokenizer.from_str(ByteTokenizer().definition.decode())
    library.enable_truncation(4)
    library.enable_padding(length=9)
    file = tmp_path / "tokenizer.json"
    library.save(str(file))
    assert FileTokenizer(file).encode(b"a longer text").tolist() == list(b"a longer text")


@pytest.mark.parametrize(("tokens", "width"), [(256, 1), (257, 2), (65_536, 2), (65_537, 4)])
def test_tokens_are_as_wide_as_they_must_be(tmp_path: Path, tokens: int, width: int) -> None:
    import tokenizers

    vocabulary = {f"w{number}": number for number in range(tokens)}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    file = tmp_path / "tokenizer.json"
    library.save(str(file))
    tokenizer = FileTokenizer(file)
    assert (tokenizer.vocabulary, tokenizer.token_bytes) == (tokens, width)
    assert tokenizer.encode(f"w1 w{tokens - 1}".encode()).tolist() == [1, tokens - 1]


def test_a_tokenizer_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    for content in (None, b"", b"{}", b"\xff", b'{"model": {"type": "BPE", "vocab": {}}}'):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(UserError) as caught:
            FileTokenizer(file)
        assert caught.value.code == ExitCode.MANIFEST
        assert str(file) in caught.value.problem


def test_text_that_is_not_utf8_is_told(tmp_path: Path) -> None:
    definition = tmp_path / "tokenizer.json"
    definition.write_bytes(ByteTokenizer().definition)
    file = tmp_path / "a.txt"
    file.write_bytes(b"fine\n\xff\n")
    pieces = Corpus(training=[Piece(file, 0, 7, True)], heldout=[]).training
    with pytest.raises(UserError) as caught:
        write_shards(
            pieces, FileTokenizer(definition), "", BlobStore(tmp_path / "b"), lambda _: None
        )
    assert caught.value.code == ExitCode.DATA_MISSING
    assert str(file) in caught.value.problem
