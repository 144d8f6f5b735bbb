"""A real model, served and used by the `openai` package, by browsers' requests and by strangers'."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import h11
import pytest
import trio
from dashboard.support import Reply, read_reply
from distro_node.node.cli.main import main
from distro_node.node.dashboard.address import Address
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.results.generate import GenerateSettings, open_writer
from distro_node.node.results.saved_state import State, reconstructed
from distro_node.node.serve import model_source
from distro_node.node.serve.completion_request import MAX_BODY_BYTES
from distro_node.node.serve.model_source import (
    DirectorySource,
    ModelName,
    ModelSource,
    SwarmSource,
)
from distro_node.node.serve.server import ServeSettings, run_server
from distro_node.node.serve.text_service import ServiceLimits
from distro_node.node.settings.tree import NEWEST, StateSelector
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.storage.entry_file import EntryFile
from distro_node.node.storage.swarm_store import LocalSnapshot, SwarmStore
from distro_node.node.trainer.models.export import export
from distro_node.node.trainer.models.initial_parameters import Lora
from distro_node.protocol.chain.entry_store import MAX_DECIDED_BYTES
from distro_node.protocol.wire.swarm_id import swarm_text
from results.support import LAST, Made, make_swarm
from trainer.small_models import SMALL_MODELS
from trainer.support import make_session
from trainer.test_task_results import made as made_session
from trainer.test_task_results import talking
from trainer.test_tasks import TINY_BERT

pytestmark = pytest.mark.usefixtures("logging_as_it_was")

if TYPE_CHECKING:
    import openai
else:
    openai = pytest.importorskip("openai")

T = TypeVar("T")
KEY = "a-key-of-twenty-letters"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return a finished run. Tests may not modify it."""
    return make_swarm(tmp_path_factory.mktemp("finished"))


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the export of a small model with a chat template."""
    root = tmp_path_factory.mktemp("talker")
    export(talking(root / "blobs"), BlobStore(root / "blobs"), root / "out")
    return root / "out"


@dataclass
class Served:
    """A served model."""

    address: Address
    name: ModelName

    @property
    def port(self) -> int:
        return self.address.listeners[0].socket.getsockname()[1]

    async def by_client(self, use: Callable[[openai.OpenAI], T], key: str = "none") -> T:
        """Let the `openai` package do something, in a thread."""
        url = f"{self.address.url}v1"
        with openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=60) as client:
            return await trio.to_thread.run_sync(use, client)

    async def ask(self, path: str, body: bytes = b"", **headers: str) -> Reply:
        """Send a request as a browser or a program might."""
        said = {"Host": f"127.0.0.1:{self.port}", "Content-Type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        if body:
            said["Content-Length"] = str(len(body))
        client = h11.Connection(h11.CLIENT)
        sent = [(name.encode(), value.encode()) for name, value in said.items()]
        method = "POST" if body else "GET"
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            data = client.send(h11.Request(method=method, target=path, headers=sent)) or b""
            data += client.send(h11.Data(data=body)) or b""
            await stream.send_all(data)
            return await read_reply(stream, client)


@asynccontextmanager
async def served(source: ModelSource, **changes: Any) -> AsyncIterator[Served]:
    settings = ServeSettings(source=source, address=("127.0.0.1", 0), **changes)
    sent, received = trio.open_memory_channel[Served](1)
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            await run_server(settings, lambda *known: sent.send_nowait(Served(*known)))

        nursery.start_soon(run)
        with trio.fail_after(240):
            model = await received.receive()
        yield model
        nursery.cancel_scope.cancel()


def source_of(made: Made, selector: StateSelector = NEWEST) -> SwarmSource:
    return SwarmSource(data=made.data, swarm=made.manifest.swarm, selector=selector)


def body_of(**given: Any) -> bytes:
    return json.dumps(given).encode()


async def until(ask: Callable[[], Awaitable[Reply]], status: int) -> None:
    """Ask again and again until this is the answer."""
    with trio.fail_after(60):
        while (await ask()).status != status:  # noqa: ASYNC110  (only its answers tell)
            await trio.sleep(0.02)


async def test_the_newest_state_of_a_swarm(finished: Made) -> None:
    asked = GenerateSettings(
        swarm=finished.manifest.swarm, data_dir=finished.data.root, temperature=0, max_tokens=6
    )
    pieces: list[str] = []
    async with open_writer(asked) as writer:
        await writer.write("swarm ", pieces.append)
    expected = "".join(pieces)
    name = swarm_text(finished.manifest.swarm)
    full = f"{name}@round-{LAST}"

    def use(client: openai.OpenAI) -> None:
        (listed,) = client.models.list().data
        assert listed.id == name
        for each in (name, full):
            assert client.models.retrieve(each).id == name
            answer = client.completions.create(
                model=each, prompt="swarm ", temperature=0, max_tokens=6
            )
            assert answer.choices[0].text == expected
            assert answer.choices[0].finish_reason == "length"
            assert answer.model == full
            fingerprint = f"{finished.fingerprints[-1]:016x}"
            assert answer.system_fingerprint == f"round-{LAST}-{fingerprint}"
            assert answer.usage is not None
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 6)

        chunks = [
            *client.completions.create(
                model=name,
                prompt="swarm ",
                temperature=0,
                max_tokens=6,
                stream=True,
                stream_options={"include_usage": True},
            )
        ]
        assert "".join(c.choices[0].text for c in chunks if c.choices) == expected
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == 12

        drawn = [
            client.completions.create(model=name, prompt=["a", "b"], n=2, seed=seed).choices
            for seed in (3, 3, 4)
        ]
        assert drawn[0] == drawn[1] != drawn[2]
        assert [each.index for each in drawn[0]] == [0, 1, 2, 3]
        # The likeliest token alone is the same as no temperature.
        narrow = client.completions.create(model=name, prompt="swarm ", top_p=0, max_tokens=6)
        assert narrow.choices[0].text == expected

        with pytest.raises(openai.BadRequestError, match="the model takes 1 to 63"):
            client.completions.create(model=name, prompt="x" * 70, stream=True)
        with pytest.raises(openai.BadRequestError, match="no chat template"):
            client.chat.completions.create(
                model=name, messages=[{"role": "user", "content": "Hm?"}]
            )
        with pytest.raises(openai.NotFoundError, match=full):
            client.completions.create(model=f"{name}@round-1", prompt="a")
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model=name, input="a")

    async with served(source_of(finished)) as model:
        await model.by_client(use)


async def test_an_export_with_a_chat_template(talker: Path) -> None:
    messages: Any = [{"role": "system", "content": "S"}, {"role": "user", "content": "Hm?"}]

    def use(client: openai.OpenAI) -> None:
        whole = client.chat.completions.create(
            model="out", messages=messages, temperature=0, max_tokens=5
        )
        (choice,) = whole.choices
        assert choice.message.role == "assistant"
        assert whole.model == "out"
        assert whole.usage is not None
        # Each character of the conversation is a token, and each of the template's five marks.
        asked = "system\nS\nuser\nHm?\nassistant\n"
        assert whole.usage.prompt_tokens == len(asked) + 5
        streamed = client.chat.completions.create(
            model="out", messages=messages, temperature=0, max_tokens=5, stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" for chunk in streamed]
        assert "".join(pieces) == choice.message.content
        with pytest.raises(openai.BadRequestError, match="tools"):
            client.chat.completions.create(
                model="out", messages=messages, tools=[{"type": "custom", "custom": {"name": "x"}}]
            )

    async with served(DirectorySource(directory=talker)) as model:
        assert model.name == ModelName(name="out", round=None)
        await model.by_client(use)


async def test_a_model_for_which_there_is_no_memory_is_not_loaded(finished: Made) -> None:
    source = replace(source_of(finished), spare_memory=1 << 60)
    with pytest.raises(UserError, match="of main memory beside the training") as refused:
        async with source.opened():
            pass
    assert refused.value.code is ExitCode.MODEL_TOO_LARGE


async def test_the_base_of_adapters_counts_as_memory_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_swarm(tmp_path / "data", rounds=1, lora=Lora(rank=2, alpha=8.0))
    trained, frozen = made.manifest.elements, made.manifest.frozen_elements
    source = replace(source_of(made), spare_memory=1000)
    monkeypatch.setattr(
        model_source, "free_main_memory", lambda: 8 * trained + 4 * frozen + 1000 - 1
    )
    with pytest.raises(UserError) as refused:
        async with source.opened():
            pass
    assert refused.value.code is ExitCode.MODEL_TOO_LARGE


def after_round_3(finished: Made, root: Path) -> tuple[SwarmSource, Callable[[], None]]:
    """Return a copy of a run as it was after round 3, with the snapshot of round 2, and what completes
    it."""
    shutil.copytree(finished.data.root, root)
    data = DataDir(root)
    files = data.swarm(finished.manifest.swarm)
    store = SwarmStore(files, finished.manifest)
    kept, ledger = store.snapshots(), files.ledger.read_bytes()
    entries = EntryFile(files.ledger, MAX_DECIDED_BYTES)
    entries.replace([*entries.read(repair=False)][:4])
    entries.close()
    older = finished.snapshots[2]
    store.keep_snapshots([LocalSnapshot(older.round, older.blob.hex(), older.size)])
    store.write()

    def finish() -> None:
        files.ledger.write_bytes(ledger)
        store.keep_snapshots(kept)
        store.write()

    return SwarmSource(data=data, swarm=finished.manifest.swarm, selector=NEWEST), finish


async def test_a_snapshot_that_comes_while_a_model_is_opened_is_taken(
    finished: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, finish = after_round_3(finished, tmp_path / "data")

    @asynccontextmanager
    async def slowly(*arguments: Any, **named: Any) -> AsyncIterator[State]:
        async with reconstructed(*arguments, **named) as state:
            finish()
            yield state

    monkeypatch.setattr(model_source, "reconstructed", slowly)
    async with source.opened() as model:
        assert model.name.round == 3
        assert await model.has_newer()
        await model.take_newer()
        assert model.name.round == LAST
        assert not await model.has_newer()


async def test_a_better_round_is_taken_without_a_new_snapshot(
    finished: Made, tmp_path: Path
) -> None:
    source, _ = after_round_3(finished, tmp_path / "data")
    history = source.data.swarm(source.swarm).history

    def measure(round_: int, loss: float) -> None:
        with history.open("a") as file:
            file.write(json.dumps({"round": round_, "time": 0.0, "heldout": loss}) + "\n")

    # The best round of all cannot be reconstructed.
    measure(77, 0.5)
    measure(2, 2.0)
    async with replace(source, selector=StateSelector(best=True)).opened() as model:
        assert model.name.round == 2
        assert not await model.has_newer()
        measure(3, 2.5)
        assert not await model.has_newer()
        measure(3, 1.5)
        assert await model.has_newer()
        await model.take_newer()
        assert model.name.round == 3
        assert not await model.has_newer()


async def test_a_newer_snapshot_is_taken_without_a_restart(finished: Made, tmp_path: Path) -> None:
    source, finish = after_round_3(finished, tmp_path / "data")
    name = swarm_text(finished.manifest.swarm)

    def round_of(client: openai.OpenAI) -> str:
        return client.completions.create(model=name, prompt="a", max_tokens=1).model

    async with served(source, limits=ServiceLimits(look_seconds=0.1)) as model:
        assert await model.by_client(round_of) == f"{name}@round-3"
        finish()
        with trio.fail_after(60):
            while await model.by_client(round_of) != f"{name}@round-{LAST}":  # noqa: ASYNC110
                await trio.sleep(0.1)


async def test_a_key_is_needed_where_one_is_set(finished: Made) -> None:
    name = swarm_text(finished.manifest.swarm)

    def use(client: openai.OpenAI) -> str:
        return client.models.list().data[0].id

    async with served(source_of(finished), token=KEY) as model:
        assert await model.by_client(use, KEY) == name
        with pytest.raises(openai.AuthenticationError, match="key is missing or wrong"):
            await model.by_client(use, f"{KEY}x")
        body = body_of(model=name, prompt="a", max_tokens=1)
        assert (await model.ask("/v1/completions", body)).status == 401
        right = {"Authorization": f"Bearer {KEY}"}
        assert (await model.ask("/v1/completions", body, **right)).status == 200
        # With the key, too, pages elsewhere are refused.
        foreign = right | {"Origin": "https://example.org"}
        assert (await model.ask("/v1/completions", body, **foreign)).status == 403


async def test_strangers_pages_and_odd_requests_are_refused(finished: Made) -> None:
    name = swarm_text(finished.manifest.swarm)
    body = body_of(model=name, prompt="a", max_tokens=1)
    path = "/v1/completions"
    async with served(source_of(finished), limits=ServiceLimits(queue=0)) as model:
        assert (await model.ask(path, body)).status == 200
        # A page elsewhere; a name that resolves to this machine; a form, which needs no preflight.
        assert (await model.ask(path, body, Origin="https://example.org")).status == 403
        assert (await model.ask(path, body, Host="rebound.example.org")).status == 403
        assert (await model.ask(path, body, Content_Type="text/plain")).status == 415
        fetched = await model.ask("/v1/models", Sec_Fetch_Site="cross-site")
        assert fetched.status == 403
        for asked, status in (
            (model.ask(path), 405),
            (model.ask("/v1/models", body), 405),
            (model.ask("/v2/models"), 404),
            (model.ask(path, b"{"), 400),
            (model.ask(path, b" " * (MAX_BODY_BYTES + 1)), 413),
        ):
            reply = await asked
            assert reply.status == status
            assert reply.json["error"]["message"]
        # A program that hangs up ends its text, so that the next one is answered at once: without a
        # queue it would be refused meanwhile.
        long = body_of(model=name, prompt="a", n=8, max_tokens=60)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{model.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(long)}\r\n\r\n"
        )
        async with await trio.open_tcp_stream("127.0.0.1", model.port) as stream:
            await stream.send_all(head.encode() + long)
            await until(lambda: model.ask(path, body), 429)
        await until(lambda: model.ask(path, body), 200)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda root: root.mkdir(), "lacks a config.json"),
        (
            lambda root: export(
                made_session(root / "blobs", TINY_BERT), BlobStore(root / "blobs"), root
            ),
            "fills gaps",
        ),
        (
            lambda root: (root.mkdir(), (root / "config.json").write_text('{"model_type": "x"}')),
            "no tokenizer.json",
        ),
    ],
)
def test_a_directory_that_cannot_be_served_is_one_line(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    make: Callable[[Path], object],
    words: str,
) -> None:
    make(tmp_path / "model")
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(tmp_path / "model"), "--address", "127.0.0.1:0"])
    assert ended.value.code == ExitCode.MODEL_FILES
    assert words in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nowhere"], ExitCode.USAGE, "neither a directory nor a link"),
        ([".", "--best"], ExitCode.USAGE, "one state"),
        (["--address", "off"], ExitCode.BAD_ADDRESS, "not an address"),
        ([".", "--address", "0.0.0.0:0"], ExitCode.BAD_ADDRESS, "--tls-cert"),
        ([".", "--key-file", "short"], ExitCode.USAGE, "the key in"),
        ([".", "--memory", "much"], ExitCode.USAGE, "not a size"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: ExitCode,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("1234\n")
    with pytest.raises(SystemExit) as ended:
        main(["serve", *arguments, "--data-dir", str(tmp_path)])
    assert ended.value.code == code
    told = capfd.readouterr().err
    assert words in told
    assert "Traceback" not in told


async def test_another_family_is_served_from_its_export(tmp_path: Path) -> None:
    session = make_session(tmp_path / "blobs", config=SMALL_MODELS["qwen2"])
    export(session, BlobStore(tmp_path / "blobs"), tmp_path / "out")

    def use(client: openai.OpenAI) -> int:
        answer = client.completions.create(model="out", prompt="once", max_tokens=3)
        assert answer.usage is not None
        return answer.usage.prompt_tokens

    async with served(DirectorySource(directory=tmp_path / "out")) as model:
        assert await model.by_client(use) == 4
