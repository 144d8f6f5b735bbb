"""Text generation, token by token: continuing a text, answering a question or filling gaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from ...errors import UserError
from ...storage.blob_store import BlobStore
from ...training.architectures import longest_sequence
from ...training.chat import BadConversation, BadTemplate, ChatTemplate
from ...training.errors import TrainerFailed
from ...training.resource_limits import limited
from ...training.text_request import ChatMessage, TextRequest, TextStart
from ...training.tokenizer_settings import TokenizerSettings
from ..models.rotary_switch import rotary_switches
from ..models.swarm_tokenizer import open_tokenizer, special_ids, text_ends, tokenise
from ..training_session import TrainingSession
from .group_sampling import keeps_logits
from .language_tasks import MaskedLM

# Lower temperatures count as this one: the scores could overflow at them, and the likeliest token is
# already certain at this one.
_COLDEST = 1e-6


@dataclass(frozen=True, kw_only=True)
class TextModel:
    """A model with everything that its texts depend on."""

    model: Any
    device: torch.device
    vocabulary: int
    longest: int
    """The model's longest context in tokens."""
    tokenizer: Tokenizer
    settings: TokenizerSettings
    start: int | None
    """The token that begins every text; None: there is none."""
    empty: tuple[int, ...]
    """The tokens with which an empty prompt may begin, the best one first."""
    ends: frozenset[int]
    """The tokens that end a text."""
    asks: bool = False
    """Whether a prompt is a user's message, by default."""
    mask: int | None = None
    """The token that stands for a gap, for a model that fills gaps."""


def session_text_model(session: TrainingSession, store: BlobStore) -> TextModel:
    """Return the model of a session as one that generates text. Raises `TrainerFailed` (`bad_data`) if
    the tokenizer's blobs are missing or unusable."""
    manifest, data = session.manifest, session.manifest.data
    _, tokenizer, settings = open_tokenizer(manifest, store)
    special = special_ids(tokenizer, settings)
    longest = longest_sequence(session.model.config.to_dict())
    # An empty prompt begins as a text does in training: after the end token of another text.
    first = (data.end_token, special["eos_token_id"])
    others = special["bos_token_id"], special["pad_token_id"]
    return TextModel(
        model=session.model,
        device=session.device,
        vocabulary=data.vocabulary,
        longest=data.sequence_length if longest is None else longest,
        tokenizer=tokenizer,
        settings=settings,
        start=data.start_token,
        empty=_present(*first, *others),
        ends=text_ends(manifest, tokenizer, settings),
        asks=data.trains_on_conversations and settings.chat_template is not None,
        mask=session.task.settings.mask_token if isinstance(session.task, MaskedLM) else None,
    )


def _present(*tokens: int | None) -> tuple[int, ...]:
    return tuple(token for token in tokens if token is not None)


@torch.no_grad()
def start_text(source: TextModel, request: TextRequest) -> tuple[TextStart, Iterator[str]]:
    """Return the request's size in tokens, and the text of one token after the other, up to an end
    token, the requested number of tokens or the model's longest context.

    A token that ends in the middle of a character yields the empty string; the one that completes
    the character yields it. A model that fills gaps yields the whole text at once, with the likeliest
    token in each gap.

    Raises `TrainerFailed`: `bad_data` for a prompt that the model cannot take.
    """
    ids = _prompt_ids(source, request)
    if not ids or len(ids) >= source.longest:
        raise TrainerFailed(
            "bad_data",
            f"the prompt has {len(ids)} tokens, but the model takes 1 to {source.longest - 1}",
        )
    if source.mask is not None:
        return TextStart(prompt_tokens=len(ids), max_tokens=1), _fill(source, source.mask, ids)
    start = TextStart(
        prompt_tokens=len(ids), max_tokens=min(request.max_tokens, source.longest - len(ids))
    )
    return start, _write(source, ids, request, start.max_tokens)


def _prompt_ids(source: TextModel, request: TextRequest) -> list[int]:
    messages = request.messages
    if messages is None and source.asks and not request.as_text:
        messages = ({"role": "user", "content": request.prompt},)
    if messages is not None:
        # A chat template writes the start token itself.
        ids = tokenise(source.tokenizer, _conversation(source.settings, messages)).ids
    else:
        ids = tokenise(source.tokenizer, request.prompt).ids
        # A prompt may already begin with the start token.
        if ids[:1] != [source.start]:
            ids = tokenise(source.tokenizer, request.prompt, add_special=True).ids
    return ids or [*source.empty[:1]]


def _conversation(settings: TokenizerSettings, messages: tuple[ChatMessage, ...]) -> str:
    if settings.chat_template is None:
        raise TrainerFailed(
            "bad_data", "the model has no chat template: it continues texts and takes no messages"
        )
    try:
        with limited("bad_data", "rendering the chat template"):
            return ChatTemplate(settings).text(messages, prompt=True)
    except UserError as error:
        raise TrainerFailed("bad_data", error.problem) from None
    except BadTemplate as error:
        raise TrainerFailed("bad_data", f"the chat template {error}") from None
    except BadConversation as error:
        raise TrainerFailed("bad_data", f"the prompt {error}") from None


@torch.no_grad()
def _fill(source: TextModel, mask: int, ids: list[int]) -> Iterator[str]:
    gaps = [position for position, token in enumerate(ids) if token == mask]
    if not gaps:
        named = source.tokenizer.id_to_token(mask)
        raise TrainerFailed("bad_data", f"the text has no gap to fill; write a gap as {named}")
    source.model.eval()
    scores = source.model(input_ids=torch.tensor([ids], device=source.device)).logits[0]
    scores = scores[:, : source.vocabulary].float().cpu()
    scores[:, mask] = -torch.inf
    for position in gaps:
        ids[position] = int(scores[position].argmax())
    yield source.tokenizer.decode(ids)


@torch.no_grad()
def _write(
    source: TextModel, ids: list[int], request: TextRequest, max_tokens: int
) -> Iterator[str]:
    source.model.eval()
    # Drawn on the CPU, so that the same seed draws the same numbers on any device.
    generator = torch.Generator().manual_seed(request.seed)
    decoder = _TextDecoder(source.tokenizer, ids)
    # The scores after every token of a long prompt would take gigabytes, and only the last ones count.
    last = {"logits_to_keep": 1} if keeps_logits(source.model) else {}
    switches = rotary_switches(source.model.config)
    read, past = [*ids], None
    for number in range(1, max_tokens + 1):
        if len(read) - 1 in switches:
            # The cached keys are rotated as in a shorter text.
            past = None
        inputs = read if past is None else read[-1:]
        batch = torch.tensor([inputs], device=source.device)
        output = source.model(input_ids=batch, past_key_values=past, use_cache=True, **last)
        past = output.past_key_values
        # Rows beyond the vocabulary only pad the matrix's size; they are not tokens.
        scores = output.logits[0, -1, : source.vocabulary].float().cpu()
        token = _draw(scores, request.temperature, request.top_p, generator)
        if token in source.ends:
            rest = decoder.rest()
            if rest:
                yield rest
            return
        read.append(token)
        piece = decoder.add(token)
        # A reader counts a piece as a token, and asks for no more of them than `max_tokens`.
        yield piece if number < max_tokens else piece + decoder.rest()


class _TextDecoder:
    """Decoder of one token after the other, in the context of the previous ones.

    It waits for complete characters. The library's stream fails if it waits in vain: where bytes are
    tokens, an ordinary token after the first bytes of a character changes how the text before is
    decoded. The text then goes on in a new stream.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: list[int]) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._held: list[int] = []
        for token in prompt:
            self.add(token)
        self._held.clear()

    def add(self, token: int) -> str:
        """Return the text that a token completes."""
        self._held.append(token)
        try:
            text = self._stream.step(self._tokenizer, token)
        # The library raises plain Exception.
        except Exception:
            text = self._tokenizer.decode(self._held)
            self._stream = DecodeStream(skip_special_tokens=True)
            # A tokenizer may drop the space before the first token, so the next one must not be it.
            self._stream.step(self._tokenizer, token)
        if text is None:
            return ""
        self._held.clear()
        return text

    def rest(self) -> str:
        """Return the text of the tokens that have completed no character, up to the incomplete one."""
        return self._tokenizer.decode(self._held).rstrip("\ufffd")


def _draw(
    scores: torch.Tensor, temperature: float, top_p: float, generator: torch.Generator
) -> int:
    """Return the next token, drawn by the model's scores of all tokens. Raises `TrainerFailed`
    (`bad_model`) if these are not numbers."""
    if not torch.isfinite(scores).all():
        raise TrainerFailed("bad_model", "the model computes no numbers: its training has diverged")
    if temperature == 0 or top_p == 0:
        return int(scores.argmax())
    chances = torch.softmax(scores / max(temperature, _COLDEST), dim=-1)
    if top_p < 1:
        ordered, tokens = chances.sort(descending=True)
        # A token stays if the likelier ones together have not reached the probability yet, so the
        # likeliest always does. The draw scales the rest to a sum of 1.
        ordered[ordered.cumsum(0) - ordered >= top_p] = 0
        return int(tokens[torch.multinomial(ordered, 1, generator=generator)])
    return int(torch.multinomial(chances, 1, generator=generator))
