"""The results of a swarm: reconstructed states, exports, and their verification."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import distro_node.node.results.export as export_module
import pytest
from distro_node.node.cli.main import main
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.results.export import (
    ExportSettings,
    check_gguf,
    check_target,
    complete_directory,
    export_swarm,
)
from distro_node.node.results.generate import GenerateSettings, open_writer
from distro_node.node.results.hub_upload import push
from distro_node.node.results.loss_curve import curve_image, thinned
from distro_node.node.results.model_card import card, contributions, provenance_bytes
from distro_node.node.results.saved_state import heldout_losses, read_swarm, reconstructed
from distro_node.node.results.verify import VerifySettings, verify_model
from distro_node.node.settings.tree import NEWEST, StateSelector
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.swarm_store import LocalSnapshot, SwarmStore
from distro_node.node.training.gguf_formats import GgufType
from distro_node.protocol.wire.manifest import SourceSpec
from distro_node.protocol.wire.structure import to_plain
from distro_node.protocol.wire.swarm_id import swarm_text
from huggingface_hub import HfApi
from huggingface_hub.utils import filter_repo_objects
from results.support import LAST, Made, make_swarm
from safetensors.torch import load_file, save_file
from statuses import SCORES
from transformers import AutoModelForCausalLM, AutoTokenizer


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return a finished run. Tests may not modify it."""
    return make_swarm(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def made(finished: Made, tmp_path: Path) -> Made:
    """Return a copy of it, which tests may modify."""
    root = tmp_path / "data"
    shutil.copytree(finished.data.root, root)
    return Made(
        type(finished.data)(root),
        finished.manifest,
        finished.ledger,
        finished.fingerprints,
        finished.snapshots,
    )


def settings(made: Made, to: Path, selector: StateSelector = NEWEST) -> ExportSettings:
    return ExportSettings(
        swarm=made.manifest.swarm, data_dir=made.data.root, to=to, selector=selector
    )


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def break_off(target: Path, error: BaseException) -> None:
    with complete_directory(target) as aside:
        (aside / "half").write_text("")
        raise error


@contextmanager
def half_exported(target: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that is in the middle of an export to `target`; it is killed at the end."""
    code = (
        "import sys, pathlib\n"
        "from distro_node.node.results.export import complete_directory\n"
        "with complete_directory(pathlib.Path(sys.argv[1])) as aside:\n"
        "    (aside / 'half').write_text('')\n"
        "    print(flush=True)\n"
        "    sys.stdin.read()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code, str(target)], stdin=pipe, stdout=pipe
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            yield process
        finally:
            process.kill()


def make_read_only(place: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)


def refusal(code: ExitCode, *words: str) -> Callable[[UserError], bool]:
    def check(error: UserError) -> bool:
        told = f"{error.problem}\n{error.remedy}"
        return error.code == code and all(word in error.problem for word in words) and bool(told)

    return check


@pytest.fixture(scope="module")
def exported(finished: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what `distro-node export` writes after the last round."""
    directory = tmp_path_factory.mktemp("out") / "model"
    with pytest.raises(SystemExit) as ended:
        main(
            [
                *("export", swarm_text(finished.manifest.swarm), "--to", str(directory)),
                *("--data-dir", str(finished.data.root)),
            ]
        )
    assert not ended.value.code
    return directory


def test_an_export_opens_as_it_is_and_states_its_origin(finished: Made, exported: Path) -> None:
    # transformers' own types of its results do not fit its `generate`.
    model: Any = AutoModelForCausalLM.from_pretrained(exported)
    tokenizer = AutoTokenizer.from_pretrained(exported)
    text = model.generate(**tokenizer("round ", return_tensors="pt"), max_new_tokens=4)
    assert text.shape[1] == len("round ") + 4

    facts = json.loads((exported / "distro-node.json").read_text())
    assert facts["round"] == LAST == facts["last_round"]
    assert facts["agreed"] is True
    assert facts["fingerprint"] == f"{finished.fingerprints[-1]:016x}"
    assert facts["record"] == finished.ledger[LAST].record.id.hex()
    assert facts["snapshot"] == finished.snapshots[LAST].blob.hex()
    (member,) = facts["trained"]["members"]
    assert member["rounds"] == LAST
    assert member["tokens"] == facts["trained"]["tokens"] == LAST * 4 * 32
    page = (exported / "README.md").read_text()
    for fact in (facts["swarm"], facts["record"], facts["fingerprint"], member["peer"]):
        assert fact in page
    assert f"distro-node verify . {facts['swarm']}" in page
    assert sorted(path.name for path in exported.parent.iterdir()) == ["model"]


async def test_the_card_has_the_losses_and_the_scores_of_this_state(
    made: Made, tmp_path: Path
) -> None:
    made.measured({1: 3.0, 2: 2.5, 4: 2.75, 5: 2.9, 77: 0.1})
    task = {"task": "quiz | <b>", "metric": "acc", "value": 0.25, "error": 0.01, "samples": 1000}
    told = {
        "swarm": swarm_text(made.manifest.swarm),
        "round": 4,
        "time": 1.0,
        "limit": None,
        "record": made.ledger[4].record.id.hex(),
        "fewshot": 0,
        "lm_eval": "0.4.10",
        "fingerprint": f"{made.fingerprints[4]:016x}",
        "tasks": [task],
    }
    later = told | {"tasks": [task | {"value": 0.5}]}
    other = told | {"fingerprint": "0" * 16, "tasks": [task | {"task": "other"}]}
    with made.history.open("a") as file:
        for scores in (told, later, other):
            file.write(json.dumps({"round": 4, "time": 1.0, "scores": scores}) + "\n")
    await export_swarm(settings(made, tmp_path / "model", StateSelector(round=4)))
    facts = json.loads((tmp_path / "model" / "distro-node.json").read_text())
    assert facts["heldout_loss"] == 2.75
    assert facts["losses"]["heldout"] == [[1, 3.0], [2, 2.5], [4, 2.75]]
    announced = [[r, made.ledger[r].record.updates[0].loss] for r in range(1, 5)]
    assert facts["losses"]["training"] == [[r, pytest.approx(loss)] for r, loss in announced]
    page = (tmp_path / "model" / "README.md").read_text()
    assert "![Loss by round](loss.svg)" in page
    assert "3.0000 nats a token at round 1, 2.7500 at round 4" in page
    assert "| quiz \\| \\<b\\> | acc | 0.5000 ± 0.0100 | 1,000 | 0 | 0.4.10 |" in page
    assert "0.2500 ±" not in page
    assert "| other" not in page
    image = ElementTree.parse(tmp_path / "model" / "loss.svg").getroot()
    assert len(image.findall("{*}circle")) == 3
    found = await verify_model(
        VerifySettings(
            directory=tmp_path / "model",
            swarm=made.manifest.swarm,
            data_dir=made.data.root,
        )
    )
    assert found.unchecked == ()


def test_a_curve_of_many_rounds_stays_small() -> None:
    curve = [(round_, 1000 / (round_ + 100)) for round_ in range(1, 100_001)]
    few = thinned(curve)
    assert len(few) == 200
    assert few[-1][0] == 100_000
    assert few[0] == (500, pytest.approx(sum(loss for _, loss in curve[:500]) / 500))
    image = curve_image(few, [], "nats a token")
    assert image is not None
    assert len(image) < 40_000
    assert curve_image([(1, 2.0)], [(1, 2.0)], "nats a token") is None
    # A loss that never changes has a line, too.
    assert curve_image([(1, 2.0), (2, 2.0)], [], "nats a token") is not None


async def test_an_export_is_what_the_swarm_agreed_on(finished: Made, exported: Path) -> None:
    asked = VerifySettings(
        directory=exported, swarm=finished.manifest.swarm, data_dir=finished.data.root
    )
    found = await verify_model(asked)
    assert found.round == LAST
    assert found.proof == "content"
    # The card and its facts are for people.
    assert found.unchecked == ()
    assert found.fingerprint == f"{finished.fingerprints[-1]:016x}"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ("weights", "fingerprint"),
        ("shape", "lacks parameters"),
        ("round", "round 3"),
        ("swarm", "another swarm"),
        ("config", "rms_norm_eps"),
        ("code", "auto_map"),
        ("tokenizer", "tokenizer.json"),
    ],
)
async def test_what_was_changed_is_found_out(
    finished: Made, exported: Path, tmp_path: Path, change: str, word: str
) -> None:
    directory = tmp_path / "model"
    shutil.copytree(exported, directory)
    weights, claims = directory / "model.safetensors", directory / "distro-node.json"
    if change in ("weights", "shape"):
        tensors = load_file(weights)
        name = sorted(tensors)[0]
        if change == "weights":
            # The smallest possible change of one number.
            flat = tensors[name].view(-1)
            flat[7] = flat[7].nextafter(flat[7] + 1)
            claims.unlink()
        else:
            del tensors[name]
        save_file(tensors, weights, {"format": "pt"})
    elif change in ("round", "swarm"):
        facts = json.loads(claims.read_text())
        facts[change] = 3 if change == "round" else "swarm-" + "a" * 20
        claims.write_text(json.dumps(facts))
    elif change in ("config", "code"):
        path = directory / "config.json"
        more = {"rms_norm_eps": 0.5} if change == "config" else {"auto_map": {"AutoModel": "x.y"}}
        path.write_text(json.dumps(json.loads(path.read_text()) | more))
    else:
        path = directory / "tokenizer.json"
        path.write_text(path.read_text() + " ")
    asked = VerifySettings(
        directory=directory, swarm=finished.manifest.swarm, data_dir=finished.data.root
    )
    with pytest.raises(UserError, check=refusal(ExitCode.NOT_THE_SWARMS, word)):
        await verify_model(asked)


def test_files_that_are_not_checked_end_otherwise(
    finished: Made, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "model"
    shutil.copytree(exported, directory)
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    arguments = ["verify", str(directory), swarm_text(finished.manifest.swarm)]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--data-dir", str(finished.data.root)])
    assert ended.value.code == ExitCode.PARTLY_VERIFIED
    out, err = capsys.readouterr()
    assert "after round 5" in out
    assert "not checked: chat_template.jinja\n" in err


def test_folders_behind_a_link_are_not_checked(
    finished: Made, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A library that opens the directory follows the link: here to another chat template."""
    directory = tmp_path / "model"
    shutil.copytree(exported, directory)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "default.jinja").write_text("another")
    (directory / "additional_chat_templates").symlink_to(tmp_path / "elsewhere")
    assert AutoTokenizer.from_pretrained(directory).chat_template == "another"
    arguments = ["verify", str(directory), swarm_text(finished.manifest.swarm)]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--data-dir", str(finished.data.root)])
    assert ended.value.code == ExitCode.PARTLY_VERIFIED
    assert "not checked: additional_chat_templates\n" in capsys.readouterr().err


@pytest.fixture(scope="module")
def converted(finished: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what `distro-node export --gguf` writes after round 4."""
    if os.environ.get("CI") != "true":
        pytest.importorskip("gguf")
    directory = tmp_path_factory.mktemp("out") / "model"
    with pytest.raises(SystemExit) as ended:
        main(
            [
                *("export", swarm_text(finished.manifest.swarm), "--to", str(directory)),
                *("--data-dir", str(finished.data.root), "--round", "4"),
                *("--gguf", "--quantise", "bf16"),
            ]
        )
    assert not ended.value.code
    return directory


def test_a_gguf_file_states_its_origin(finished: Made, converted: Path) -> None:
    import gguf

    assert names_in(converted) == ["README.md", "distro-node.json", "loss.svg", "model-bf16.gguf"]
    read = gguf.GGUFReader(converted / "model-bf16.gguf")
    fields = {name: field.contents() for name, field in read.fields.items()}
    assert (fields["general.architecture"], fields["general.name"]) == ("llama", "tiny")
    swarm, record = swarm_text(finished.manifest.swarm), finished.ledger[4].record.id.hex()
    assert fields["general.description"] == f"After round 4 of {swarm}, record {record}"
    assert len(fields["tokenizer.ggml.tokens"]) == 256
    page = (converted / "README.md").read_text()
    assert "library_name: gguf" in page
    assert "llama-cli -m model-bf16.gguf" in page
    assert f"export {swarm} --round 4 --gguf --quantise bf16" in page
    assert "distro-node verify" not in page


async def test_a_gguf_file_is_the_same_each_time_and_not_verified(
    finished: Made, converted: Path, tmp_path: Path
) -> None:
    again = replace(
        settings(finished, tmp_path / "again", StateSelector(round=4)), gguf=GgufType.BF16
    )
    await export_swarm(again)
    name = "model-bf16.gguf"
    assert (tmp_path / "again" / name).read_bytes() == (converted / name).read_bytes()
    asked = VerifySettings(
        directory=converted, swarm=finished.manifest.swarm, data_dir=finished.data.root
    )
    with pytest.raises(UserError, check=refusal(ExitCode.NO_GGUF, name)):
        await verify_model(asked)


def test_a_model_that_gguf_lacks_is_refused_before_it_is_read(
    finished: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = replace(finished.manifest, model=finished.manifest.model | {"model_type": "olmo2"})
    with pytest.raises(UserError, check=refusal(ExitCode.NO_GGUF, "'olmo2'", "gemma, gemma2")):
        check_gguf(other)
    monkeypatch.setattr(export_module, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="not installed") as refused:
        check_gguf(finished.manifest)
    assert "distro-node[gguf]" in refused.value.remedy
    with pytest.raises(SystemExit) as ended:
        main(["export", "swarm-x", "--to", "x", "--quantise", "f16"])
    assert ended.value.code == ExitCode.USAGE
    assert "--quantise needs --gguf" in capsys.readouterr().err


@pytest.mark.usefixtures("cold_trainers")
async def test_any_kept_round_can_be_made_again_and_no_other(made: Made) -> None:
    known = await read_swarm(made.data, made.manifest.swarm)
    assert [each.round for each in known.snapshots] == [-1, 4, 5]
    async with reconstructed(known, StateSelector(round=3)) as state:
        # From the initial parameters, by the updates that are still there.
        assert (state.round, state.fingerprint) == (3, made.fingerprints[3])
        assert state.record == made.ledger[3].record.id
        assert state.agreed
        assert os.getpriority(os.PRIO_PROCESS, state.trainer.pid) > 0
    (lost,) = made.ledger[2].record.updates
    BlobStore(made.data.blobs).remove(lost.update)
    for round_ in (3, LAST + 1, 99):
        with pytest.raises(UserError) as refused:
            async with reconstructed(known, StateSelector(round=round_)):
                pass
        assert refused.value.code == ExitCode.NOTHING_TO_EXPORT
        assert "rounds 0 to 1, 4 to 5" in refused.value.problem
        assert "--round" in refused.value.remedy


async def test_the_best_is_the_one_with_the_lowest_held_out_loss(
    made: Made, tmp_path: Path
) -> None:
    to = tmp_path / "model"
    with pytest.raises(UserError, match="no held-out loss") as refused:
        await export_swarm(settings(made, to, StateSelector(best=True)))
    assert "--best" in refused.value.remedy
    assert refused.value.code == ExitCode.NOTHING_TO_EXPORT
    assert not to.exists()
    # A round that is no longer kept does not count, nor does an invalid loss.
    made.measured({1: 3.0, 2: 2.5, 4: 2.75, 5: 2.9, 77: 0.1, 3: float("nan")})
    (lost,) = made.ledger[2].record.updates
    BlobStore(made.data.blobs).remove(lost.update)
    done = await export_swarm(settings(made, to, StateSelector(best=True)))
    assert done.round == 4
    assert json.loads((to / "distro-node.json").read_text())["heldout_loss"] == 2.75


async def test_a_loss_of_an_abandoned_chain_is_none_of_this_one(made: Made, tmp_path: Path) -> None:
    made.measured({4: 2.75, 5: 2.9})
    with made.history.open("a") as file:
        for round_, print_ in ((5, made.fingerprints[4]), (4, made.fingerprints[4])):
            line = {"round": round_, "heldout": 0.1 if round_ == 5 else 2.7}
            file.write(json.dumps(line | {"parameters": f"{print_:016x}"}) + "\n")
    done = await export_swarm(settings(made, tmp_path / "model", StateSelector(best=True)))
    assert done.round == 4
    facts = json.loads((tmp_path / "model" / "distro-node.json").read_text())
    assert facts["losses"]["heldout"] == [[4, 2.7]]
    assert heldout_losses(made.history, made.ledger) == {4: 2.7, 5: 2.9}


async def test_without_the_ledger_there_is_no_model(made: Made, tmp_path: Path) -> None:
    """The initial model would be available, but is never what the user means."""
    made.data.swarm(made.manifest.swarm).ledger.unlink()
    with pytest.raises(UserError, check=refusal(ExitCode.NOTHING_TO_EXPORT, "ledger")):
        await export_swarm(settings(made, tmp_path / "model"))
    assert names_in(tmp_path) == [made.data.root.name]


async def test_a_state_that_is_not_the_swarms_is_none(made: Made) -> None:
    """As after a disk fault that left a complete snapshot of other parameters."""
    directory = made.data.swarm(made.manifest.swarm)
    other = LocalSnapshot(3, made.snapshots[2].blob.hex(), made.snapshots[2].size)
    store = SwarmStore(directory, made.manifest)
    store.keep_snapshots([other])
    store.write()
    known = await read_swarm(made.data, made.manifest.swarm)
    with pytest.raises(UserError, check=refusal(ExitCode.NOTHING_TO_EXPORT, "not the swarm's")):
        async with reconstructed(known, StateSelector(round=3)):
            pass


class TestPlaces:
    @pytest.fixture
    def full(self, tmp_path: Path) -> Iterator[Path]:
        """Mount a file system with hardly any room."""
        place = tmp_path / "full"
        place.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)], capture_output=True
        )
        if mounted.returncode:
            pytest.skip("mounting takes root")
        yield place
        subprocess.run(["umount", str(place)], check=True)

    @pytest.mark.parametrize("gguf", [None, GgufType.F32])
    async def test_a_full_disk_is_one_line_and_nothing_stays(
        self, finished: Made, full: Path, gguf: GgufType | None
    ) -> None:
        for to in (full, full / "deep" / "model"):
            with pytest.raises(UserError) as refused:
                await export_swarm(replace(settings(finished, to), gguf=gguf))
            assert refused.value.code == ExitCode.DISK_FULL
            assert names_in(full) == []

    async def test_a_place_that_is_read_only(self, finished: Made, full: Path) -> None:
        make_read_only(full)
        for to in (full, full / "deep" / "model"):
            with pytest.raises(UserError, match="nothing can be written") as refused:
                await export_swarm(settings(finished, to))
            assert refused.value.code == ExitCode.NOT_WRITABLE

    def test_what_fails_leaves_nothing_and_what_ends_is_whole(self, tmp_path: Path) -> None:
        target = tmp_path / "a" / "b" / "model"
        for error in (RuntimeError("ours"), KeyboardInterrupt()):
            with pytest.raises(type(error)):
                break_off(target, error)
            assert names_in(tmp_path) == []
        full = OSError(errno.ENOSPC, "No space left on device")
        with (
            pytest.raises(UserError, check=refusal(ExitCode.DISK_FULL)),
            complete_directory(target),
        ):
            raise full
        with complete_directory(tmp_path / ("n" * 255)) as aside:
            (aside / "long").write_text("")
        assert names_in(tmp_path / ("n" * 255)) == ["long"]
        with complete_directory(target) as aside:
            (aside / "whole").write_text("")
            assert not target.exists()
        assert [path.name for path in target.iterdir()] == ["whole"]
        with pytest.raises(UserError, check=refusal(ExitCode.USAGE)):
            check_target(target)
        with (
            pytest.raises(UserError, check=refusal(ExitCode.NOT_WRITABLE)),
            complete_directory(target / "whole" / "x"),
        ):
            pass

    def test_an_empty_directory_is_filled(self, tmp_path: Path) -> None:
        check_target(tmp_path)
        with complete_directory(tmp_path) as aside:
            (aside / "whole").write_text("")
        assert [path.name for path in tmp_path.iterdir()] == ["whole"]

    @pytest.mark.parametrize("name", ["", "model"])
    def test_what_a_killed_export_leaves_goes_with_the_next_one(
        self, tmp_path: Path, name: str
    ) -> None:
        with half_exported(tmp_path / name) as process:
            left = names_in(tmp_path)
            assert len(left) == 1
            # As long as the process runs, what it writes is its own.
            with complete_directory(tmp_path / "other" if name else tmp_path):
                assert left[0] in names_in(tmp_path)
            if not name:
                with pytest.raises(UserError, check=refusal(ExitCode.USAGE)):
                    check_target(tmp_path)
            process.kill()
            process.wait()
            assert left[0] in names_in(tmp_path)
        check_target(tmp_path / name)
        with complete_directory(tmp_path / name) as aside:
            assert left[0] not in names_in(tmp_path)
            (aside / "whole").write_text("")
        assert names_in(tmp_path / name) == ["whole"]

    def test_a_directory_that_is_filled_in_part_is_emptied(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As when somebody unplugs a disk, or presses Ctrl-C, while the files are moved."""
        rename = Path.rename
        moved: list[Path] = []

        def breaks(path: Path, target: Path) -> Path:
            if len(moved) == 2:
                raise OSError(errno.EIO, "Input/output error")
            moved.append(target)
            return rename(path, target)

        def fill(place: Path) -> None:
            for name in ("folder", "other", "third"):
                (place / name).mkdir()
                (place / name / "file").write_text("")
            (place / "file").write_text("")

        monkeypatch.setattr(Path, "rename", breaks)
        with (
            pytest.raises(UserError, check=refusal(ExitCode.NOT_WRITABLE)),
            complete_directory(tmp_path) as aside,
        ):
            fill(aside)
        assert len(moved) == 2
        assert names_in(tmp_path) == []


class Stages:
    """Each stage that was shown, with the last progress of each."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[int, int]] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        self.seen[what] = done, total


async def test_what_takes_long_is_shown(finished: Made, tmp_path: Path) -> None:
    """For ten seconds, while PyTorch was loaded, nothing was."""
    exporting, verifying, writing = Stages(), Stages(), Stages()
    await export_swarm(settings(finished, tmp_path / "model"), exporting)
    assert exporting.seen == {
        "starting the trainer": (1, 1),
        "loading the model's state": (1, 1),
        "writing the model": (0, 1),
    }
    asked = VerifySettings(
        directory=tmp_path / "model",
        swarm=finished.manifest.swarm,
        data_dir=finished.data.root,
    )
    await verify_model(asked, verifying)
    assert verifying.seen == {"starting the trainer": (1, 1), "comparing the weights": (0, 1)}
    of = GenerateSettings(swarm=finished.manifest.swarm, data_dir=finished.data.root)
    async with open_writer(of, writing):
        assert set(writing.seen.values()) == {(1, 1)}


def test_stages_leave_standard_output_alone(
    finished: Made, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["generate", "swarm ", "--max-tokens", "1", "--data-dir", str(finished.data.root)])
    out, err = capfd.readouterr()
    assert not ended.value.code
    assert out.startswith("swarm ")
    assert err.splitlines()[0] == "starting the trainer …"
    assert "…" not in out


async def test_a_model_writes_while_nothing_is_changed(finished: Made) -> None:
    before = {p: p.stat().st_mtime_ns for p in finished.data.root.rglob("*") if p.is_file()}
    asked = GenerateSettings(
        swarm=finished.manifest.swarm, data_dir=finished.data.root, seed=3, max_tokens=6
    )
    async with open_writer(asked) as writer:
        assert writer.round == LAST
        pieces: list[str] = []
        await writer.write("swarm ", pieces.append)
        again: list[str] = []
        await writer.write("swarm ", again.append)
        assert again == pieces
        assert 1 <= len(pieces) <= 6
        with pytest.raises(UserError, check=refusal(ExitCode.USAGE, "64 tokens")):
            await writer.write("x" * 64, pieces.append)
        # It can be called again.
        await writer.write("", pieces.append)
    after = {p: p.stat().st_mtime_ns for p in finished.data.root.rglob("*") if p.is_file()}
    assert after == before


async def test_unlikely_tokens_can_be_left_out(finished: Made) -> None:
    """With none but the likeliest left, the highest temperature draws what the lowest does."""
    written = []
    for temperature, top_p in ((0.0, 1.0), (10.0, 0.0), (10.0, 1.0)):
        asked = GenerateSettings(
            swarm=finished.manifest.swarm,
            data_dir=finished.data.root,
            temperature=temperature,
            top_p=top_p,
            max_tokens=12,
        )
        async with open_writer(asked) as writer:
            pieces: list[str] = []
            await writer.write("swarm ", pieces.append)
        written.append("".join(pieces))
    assert written[0] == written[1] != written[2]


def test_lines_of_a_conversation_come_from_standard_input(
    finished: Made,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    said = tmp_path / "said"
    said.write_bytes(b"swarm \n%b\n\xff\nround" % (b"x" * 64))
    with said.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with pytest.raises(SystemExit) as ended:
            main(
                [
                    *("generate", "--data-dir", str(finished.data.root)),
                    *("--temperature", "0", "--max-tokens", "3"),
                ]
            )
    out, err = capfd.readouterr()
    # Nobody reads what a script is told between the answers.
    assert ended.value.code == ExitCode.USAGE
    assert "2 of 4 prompts were refused" in err
    assert len(out.splitlines()) >= 3
    assert "64 tokens" in err
    # The model would answer another prompt than the one given.
    assert "PROMPT is not text in UTF-8" in err
    assert "Traceback" not in err


def test_contributions_add_up(finished: Made) -> None:
    assert contributions(finished.ledger, 0) == {"tokens": 0, "members": []}
    assert contributions(finished.ledger, 2)["tokens"] == 2 * 4 * 32


def test_a_name_stays_text_on_the_card(exported: Path) -> None:
    facts = json.loads((exported / "distro-node.json").read_text())
    facts["name"] = "x\n## [click](http://example.org) <script>\x1b[31m"
    page = card(facts, {"model_type": "llama"})
    assert "\x1b" not in page
    assert "\n## \\[click" not in page
    assert "<script>" not in page.replace("\\<script\\>", "")
    # For programs it is written in pure ASCII, and reads back unchanged.
    facts["name"] = "x\x9b31m\u202e\u2066\x1b[31m\n"
    data = provenance_bytes(facts)
    assert all(byte in b"\n" or 32 <= byte < 127 for byte in data)
    assert json.loads(data) == facts


def test_the_card_lists_what_the_corpus_was_mixed_of(exported: Path) -> None:
    facts = json.loads((exported / "distro-node.json").read_text())
    assert facts["data"]["sources"] == []
    assert "| source" not in card(facts, {"model_type": "llama"})
    web = SourceSpec(name="web | <b>", documents=1234, tokens=567_890, share=0.7)
    code = SourceSpec(name="code", documents=10, tokens=2000, share=0.3)
    told = [to_plain(source, named=True) for source in (web, code)]
    facts["data"]["sources"] = told
    lines = card(facts, {"model_type": "llama"}).splitlines()
    assert "| web \\| \\<b\\> | 1,234 | 567,890 | 70.0 % |" in lines
    assert lines[lines.index("| code | 10 | 2,000 | 30.0 % |") + 1] == ""
    facts["data"]["sources"] = [web | {"share": 1 / 500} for web in told[:1] * 500]
    assert "| 400 more | 493,600 | 227,156,000 | 80.0 % |" in card(facts, {"model_type": "llama"})


def test_the_card_keeps_the_scores_over_the_most_questions(exported: Path) -> None:
    facts = json.loads((exported / "distro-node.json").read_text())

    def rows(*measured: tuple[float, int | None, int | None]) -> list[str]:
        facts["evaluations"] = [
            to_plain(
                replace(
                    SCORES,
                    limit=limit,
                    tasks=(replace(SCORES.tasks[0], value=value, error=None, samples=samples),),
                ),
                named=True,
            )
            for value, samples, limit in measured
        ]
        lines = card(facts, {"model_type": "llama"}).splitlines()
        return [line for line in lines if line.startswith("| arc\\_easy | acc |")]

    def row(value: str, questions: str) -> list[str]:
        return [f"| arc\\_easy | acc | {value} | {questions} | 0 | 0.4.9 |"]

    assert rows((0.25, 2376, None), (0.9, 10, 10)) == row("0.2500", "2,376")
    assert rows((0.9, 10, 10), (0.25, 2376, None)) == row("0.2500", "2,376")
    assert rows((0.25, 2376, None), (0.5, 2376, None)) == row("0.5000", "2,376")
    # lm-eval gives no number for a group of tasks.
    assert rows((0.25, None, None), (0.9, None, 10)) == row("0.2500", "")
    assert rows((0.9, None, 10), (0.8, None, 5)) == row("0.9000", "10 a task")


def test_the_hub_out_of_reach_is_one_line(
    finished: Made,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # A port without a listener: as without the internet, and fast.
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "hf_test")

    async def done(asked: ExportSettings, progress: object) -> export_module.Exported:
        asked.to.mkdir()
        (asked.to / "README.md").write_text("")
        return export_module.Exported(
            directory=asked.to, round=5, parameters=1, record="", fingerprint=""
        )

    monkeypatch.setattr(export_module, "export_swarm", done)
    with pytest.raises(SystemExit) as ended:
        main(
            [
                *("export", swarm_text(finished.manifest.swarm), "--to", str(tmp_path / "m")),
                *("--data-dir", str(finished.data.root), "--push", "owner/name"),
            ]
        )
    assert ended.value.code == ExitCode.HUB
    problem, remedy = capsys.readouterr().err.splitlines()
    assert "'owner/name' was not pushed" in problem
    assert "hf " in remedy


def test_what_was_pushed_before_does_not_stay_beside_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier adapter would be put into merged weights by whoever loads them."""
    there = ["README.md", "adapter_config.json", "adapter_model.safetensors", "model-q8_0.gguf"]
    there += [
        "config.json",
        "chat_template.jinja",
        "picture.png",
        "model-00001-of-00002.safetensors",
    ]

    def upload(_: object, *, folder_path: Path, delete_patterns: Any = None, **__: object) -> None:
        if delete_patterns is not None:
            deleted = {*filter_repo_objects(there, allow_patterns=delete_patterns)}
            # As the library does in one commit.
            there[:] = [name for name in there if name not in deleted]
        there.extend(path.name for path in folder_path.iterdir() if path.name not in there)

    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: "http://x/owner/name")
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "model-f16.gguf").write_text("")
    before = {*there}
    push(tmp_path / "gguf", "owner/name")
    assert {*there} == before | {"model-f16.gguf"}
    (tmp_path / "model").mkdir()
    for name in ("README.md", "config.json", "model.safetensors"):
        (tmp_path / "model" / name).write_text("")
    assert push(tmp_path / "model", "owner/name") == "http://x/owner/name"
    kept = {"README.md", "config.json", "picture.png", "model-q8_0.gguf", "model-f16.gguf"}
    assert {*there} == kept | {"model.safetensors"}
