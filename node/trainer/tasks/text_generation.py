"""Text generation, token by token: continuing a text, answering a question or filling gaps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tokenizers.decoders import DecodeStream

from ...errors import UserError
from ...storage.blob_store import BlobStore
from ...training.architectures import longest_sequence
from ...training.chat import BadConversation, BadTemplate, ChatTemplate
from ...training.errors import TrainerFailed
from ...training.resource_limits import limited
from ..models.export import open_tokenizer, special_ids, tokenise, turn_end
from ..training_session import TrainingSession
from .language_tasks import MaskedLM


@torch.no_grad()
def write_text(
    session: TrainingSession,
    store: BlobStore,
    prompt: str,
    seed: int,
    temperature: float,
    max_tokens: int,
) -> Iterator[str]:
    """Yield the text of one token after the other, up to an end token, `max_tokens` tokens or the
    model's longest context.

    A token that ends in the middle of a character yields the empty string; the one that completes
    the character yields it. With `temperature` 0 each token is the likeliest one; otherwise it is
    drawn, by `seed`. A model trained on conversations is prompted through the chat template. A model
    that fills gaps yields the whole text at once, with the likeliest token in each gap.

    Raises `TrainerFailed`: `bad_data` for a prompt that the model cannot take.
    """
    _, tokenizer, settings = open_tokenizer(session.manifest, store)
    uses_template = session.manifest.data.marked and settings.chat_template is not None
    if uses_template:
        try:
            messages = [{"role": "user", "content": prompt}]
            with limited("bad_data", "rendering the chat template"):
                prompt = ChatTemplate(settings).text(messages, prompt=True)
        except UserError as error:
            raise TrainerFailed("bad_data", error.problem) from None
        except BadTemplate as error:
            raise TrainerFailed("bad_data", f"the chat template {error}") from None
        except BadConversation as error:
            raise TrainerFailed("bad_data", f"the prompt {error}") from None
    ids = tokenise(tokenizer, prompt).ids
    start = session.manifest.data.start_token
    # A chat template writes the start token itself, and a prompt may already begin with it.
    if not uses_template and ids[:1] != [start]:
        ids = tokenise(tokenizer, prompt, whole=True).ids
    special = special_ids(tokenizer, settings)
    if not ids:
        first = (session.manifest.data.end_token, special["eos_token_id"])
        others = special["bos_token_id"], special["pad_token_id"]
        # An empty prompt begins as a text does in training: after the end token of another text.
        ids = [number for number in (*first, *others) if number is not None][:1]
    longest = _longest(session)
    if not ids or len(ids) >= longest:
        raise TrainerFailed(
            "bad_data", f"the prompt has {len(ids)} tokens, but the model takes 1 to {longest - 1}"
        )
    if isinstance(session.task, MaskedLM):
        return _fill(session, session.task, tokenizer, ids)
    ends = {special["eos_token_id"], turn_end(session.manifest, tokenizer, settings)}
    return _write(session, tokenizer, ids, ends, seed, temperature, max_tokens)


@torch.no_grad()
def _fill(
    session: TrainingSession, task: MaskedLM, tokenizer: Any, ids: list[int]
) -> Iterator[str]:
    gaps = [position for position, token in enumerate(ids) if token == task.settings.mask_token]
    if not gaps:
        named = tokenizer.id_to_token(task.settings.mask_token)
        raise TrainerFailed("bad_data", f"the text has no gap to fill; write a gap as {named}")
    session.model.eval()
    scores = session.model(input_ids=torch.tensor([ids], device=session.device)).logits[0]
    scores = scores[:, : session.manifest.data.vocabulary].float().cpu()
    scores[:, task.settings.mask_token] = -torch.inf
    for position in gaps:
        ids[position] = int(scores[position].argmax())
    yield tokenizer.decode(ids)


def _longest(session: TrainingSession) -> int:
    known = longest_sequence(session.model.config.to_dict())
    return known if known is not None else session.manifest.data.sequence_length


@torch.no_grad()
def _write(
    session: TrainingSession,
    tokenizer: Any,
    ids: list[int],
    ends: set[int | None],
    seed: int,
    temperature: float,
    max_tokens: int,
) -> Iterator[str]:
    session.model.eval()
    vocabulary = session.manifest.data.vocabulary
    # Drawn on the CPU, so that the same seed draws the same numbers on any device.
    generator = torch.Generator().manual_seed(seed)
    # The stream decodes a token in the context of the previous ones, and waits for complete characters.
    stream = DecodeStream(skip_special_tokens=True)
    for token in ids:
        stream.step(tokenizer, token)
    inputs, past = ids, None
    for _ in range(min(max_tokens, _longest(session) - len(ids))):
        batch = torch.tensor([inputs], device=session.device)
        output = session.model(input_ids=batch, past_key_values=past, use_cache=True)
        past = output.past_key_values
        # Rows beyond the vocabulary only pad the matrix's size; they are not tokens.
        scores = output.logits[0, -1, :vocabulary].float().cpu()
        if temperature == 0:
            token = int(scores.argmax())
        else:
            chances = torch.softmax(scores / temperature, dim=-1)
            token = int(torch.multinomial(chances, 1, generator=generator))
        if token in ends:
            return
        inputs = [token]
        yield stream.step(tokenizer, token) or ""
