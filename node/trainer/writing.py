"""Text from the model, token by token: what it makes of a beginning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tokenizers.decoders import DecodeStream

from ..storage.blob_store import BlobStore
from .errors import TrainerFailed
from .export import open_tokenizer, special_ids
from .limits import limited
from .session import TrainingSession

# A person's beginning of a text takes milliseconds.
_SECONDS = 60.0
_BYTES = 2 << 30


@torch.no_grad()
def write_text(
    session: TrainingSession,
    store: BlobStore,
    prompt: str,
    seed: int,
    temperature: float,
    max_tokens: int,
) -> Iterator[str]:
    """Yield the text of one token after the other, up to an end token or the model's longest context.

    A token that ends in the middle of a character yields nothing; the one that completes it yields it.
    With the `temperature` 0 it is always the likeliest token; else it is drawn, by `seed`.

    Raises `TrainerFailed`: `bad_data` for a beginning that the model cannot take.
    """
    _, tokenizer, settings = open_tokenizer(session.manifest, store)
    ids = _cut(tokenizer, prompt)
    special = special_ids(tokenizer, settings)
    if not ids:
        first = special["bos_token_id"], special["eos_token_id"], special["pad_token_id"]
        # As a text begins in training: behind the end of another one.
        ids = [number for number in first if number is not None][:1]
    longest = _longest(session)
    if not ids or len(ids) >= longest:
        raise TrainerFailed(
            "bad_data", f"the beginning has {len(ids)} tokens, the model takes 1 to {longest - 1}"
        )
    return _write(session, tokenizer, ids, special["eos_token_id"], seed, temperature, max_tokens)


def _cut(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a text. A regular expression in the tokenizer may go on for ever, or give up."""
    try:
        with limited("bad_data", "to cut the text into tokens", seconds=_SECONDS, memory=_BYTES):
            return tokenizer.encode(text, add_special_tokens=False).ids
    # So the library's own code ends in Python; it has no name that could be imported.
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        problem = (str(error).splitlines() or ["it gave up"])[0][:200]
        raise TrainerFailed("bad_data", f"the tokenizer cannot cut the text: {problem}") from None


def _longest(session: TrainingSession) -> int:
    known = getattr(session.model.config, "max_position_embeddings", None)
    return known if isinstance(known, int) else session.manifest.data.sequence_length


@torch.no_grad()
def _write(
    session: TrainingSession,
    tokenizer: Any,
    ids: list[int],
    end: int | None,
    seed: int,
    temperature: float,
    max_tokens: int,
) -> Iterator[str]:
    session.model.eval()
    vocabulary = session.manifest.data.vocabulary
    # On the CPU: the same seed draws the same whatever the device.
    generator = torch.Generator().manual_seed(seed)
    # It knows what a token is behind another one, and waits for characters to be whole.
    stream = DecodeStream(skip_special_tokens=True)
    for token in ids:
        stream.step(tokenizer, token)
    fed, past = ids, None
    for _ in range(min(max_tokens, _longest(session) - len(ids))):
        batch = torch.tensor([fed], device=session.device)
        answer = session.model(input_ids=batch, past_key_values=past, use_cache=True)
        past = answer.past_key_values
        # Beyond the vocabulary there are rows that make sizes round, and no token.
        scores = answer.logits[0, -1, :vocabulary].float().cpu()
        if temperature == 0:
            token = int(scores.argmax())
        else:
            chances = torch.softmax(scores / temperature, dim=-1)
            token = int(torch.multinomial(chances, 1, generator=generator))
        if token == end:
            return
        fed = [token]
        yield stream.step(tokenizer, token) or ""
