"""A language model's loss computed without holding all logits at once.

The logits of 2,048 tokens with a vocabulary of 128,000 take a gigabyte in float32; with the softmax and
the gradient of the logits it would be three. Here a few rows at a time go through the head, into the
loss and into the gradients of hidden states and head, and are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from ...training.memory_options import logit_rows

_expected: ContextVar[float] = ContextVar("expected gradient of a loss", default=1.0)


@contextmanager
def expecting_gradient(factor: float) -> Iterator[None]:
    """Announce the factor with which the losses computed meanwhile will be differentiated.

    The gradients of the head are computed with a loss, before its backward pass, so a loss scale that
    is to keep them within float16 must be known by then. Any other factor gives the same gradients,
    except for what is lost in 16 bits.
    """
    token = _expected.set(factor)
    try:
        yield
    finally:
        _expected.reset(token)


def token_loss(
    model: PreTrainedModel,
    inputs: Mapping[str, Any],
    targets: torch.Tensor,
    chosen: torch.Tensor | None = None,
    *,
    weights: torch.Tensor | None = None,
    temperature: float = 1.0,
) -> torch.Tensor:
    """Return the sum of the cross-entropy in nats, as float32.

    `inputs` are the model's; `targets` is a flat tensor of the tokens to be predicted; `chosen`, bool
    (samples, length), marks the positions to predict; None: all. Other positions do not go through a
    linear head. `weights`, float32 and as long as `targets`, are the factors of the targets in the sum;
    None: each is 1. The logits are divided by `temperature`.
    """
    head: Any = model.get_output_embeddings()
    if type(head) is not torch.nn.Linear:
        logits = _chosen_rows(model(**inputs).logits, chosen).float() / temperature
        losses = functional.cross_entropy(logits, targets, reduction="none")
        return (losses if weights is None else losses * weights).sum()
    with _without_head(model, head) as cap:
        hidden = _chosen_rows(model(**inputs).logits, chosen)
    with_gradients = torch.is_grad_enabled()
    return _HeadLoss.apply(
        *(hidden, head.weight, head.bias, targets, cap, with_gradients, weights, None, temperature)
    )


def objective_of_losses(
    model: PreTrainedModel,
    inputs: Mapping[str, Any],
    targets: torch.Tensor,
    chosen: torch.Tensor,
    objective: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Return an objective, a differentiable scalar, of the cross-entropy of each chosen position:
    float32 (targets,), in nats.

    The other arguments are `token_loss`'s. The logits are computed twice: how much a token's loss
    weighs in the gradient is known only when all losses are.
    """
    head: Any = model.get_output_embeddings()
    if type(head) is not torch.nn.Linear:
        logits = _chosen_rows(model(**inputs).logits, chosen).float()
        return objective(functional.cross_entropy(logits, targets, reduction="none"))
    with _without_head(model, head) as cap:
        hidden = _chosen_rows(model(**inputs).logits, chosen)
    losses = torch.zeros(len(targets), dtype=torch.float32, device=hidden.device)
    with torch.no_grad():
        _HeadLoss.apply(hidden, head.weight, head.bias, targets, cap, False, None, losses)
    if not torch.is_grad_enabled():
        return objective(losses)
    value = objective(losses.requires_grad_())
    (weights,) = torch.autograd.grad(value, losses)
    linear = _HeadLoss.apply(hidden, head.weight, head.bias, targets, cap, True, weights)
    # It has the objective's value and, because the weights are the objective's derivative, its gradient.
    return value.detach() + (linear - linear.detach())


def _chosen_rows(values: torch.Tensor, chosen: torch.Tensor | None) -> torch.Tensor:
    return values.flatten(0, 1) if chosen is None else values[chosen]


@contextmanager
def _without_head(model: PreTrainedModel, head: torch.nn.Linear) -> Iterator[float | None]:
    """Make the model return the inputs of its head; yield the bound of its logits, if it has one.

    This bound (Gemma 2's) is not linear, so it has to be applied after the head. Anything else that a
    model does with its logits is linear (Granite divides them), so it may be done before the head.
    """
    cap = getattr(model.config, "final_logit_softcapping", None)
    # setattr, because a type checker refuses a function whose parameter is not named as the method's.
    setattr(head, "forward", _identity)  # noqa: B010
    if cap is not None:
        model.config.final_logit_softcapping = None
    try:
        yield cap
    finally:
        # This restores the class's own method.
        del head.forward
        if cap is not None:
            model.config.final_logit_softcapping = cap


def _identity(hidden: torch.Tensor) -> torch.Tensor:
    return hidden


class _HeadLoss(torch.autograd.Function):
    """Hidden states (N, H), the head's weight (V, H) and bias (V), targets (N) → the sum of the loss, in
    which each target counts with its weight, float32 (N); None: with 1. `losses`, float32 (N), is filled
    with the loss of each. The logits are divided by `temperature`.

    The forward pass computes the gradients too, as for the incoming gradient that is expected: the loss
    and the gradients need the logits, and computing those twice would cost a third more.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        cap: float | None,
        with_gradients: bool,
        weights: torch.Tensor | None = None,
        losses: torch.Tensor | None = None,
        temperature: float = 1.0,
    ) -> torch.Tensor:
        kind = hidden.device.type
        compute_dtype = (
            torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        )
        with torch.autocast(kind, enabled=False):
            return _forward(
                *(ctx, hidden, weight, bias, targets, cap, with_gradients, compute_dtype),
                *(weights, losses, temperature),
            )

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (factor,) = gradients
        # The gradients are dropped here, because the loss, and with it this context, may live longer.
        kept, ctx.gradients = ctx.gradients, ()
        left = factor / ctx.expected
        scaled = [None if each is None else each.mul_(left) for each in kept]
        return (*scaled, None, None, None, None, None, None)


def _forward(
    ctx: Any,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    cap: float | None,
    with_gradients: bool,
    compute_dtype: torch.dtype,
    weights: torch.Tensor | None,
    losses: torch.Tensor | None,
    temperature: float,
) -> torch.Tensor:
    of_hidden, of_weight, of_bias = (with_gradients and need for need in ctx.needs_input_grad[:3])
    hidden_gradient = torch.empty_like(hidden) if of_hidden else None
    weight_gradient = torch.zeros_like(weight) if of_weight else None
    bias_gradient = torch.zeros_like(bias) if of_bias and bias is not None else None
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    matrix = weight.to(compute_dtype)
    ctx.expected = expected_gradient = _expected.get()
    step = logit_rows(len(weight), hidden.device.type)
    for start in range(0, len(hidden), step):
        chunk = slice(start, start + step)
        rows, expected = hidden[chunk].to(compute_dtype), targets[chunk]
        logits = (rows @ matrix.T).float()
        if bias is not None:
            logits += bias
        cap_slope = None
        if cap is not None:
            logits.div_(cap).tanh_()
            cap_slope = 1 - logits.square()
            logits.mul_(cap)
        if temperature != 1.0:
            logits.div_(temperature)
        sums = logits.logsumexp(1)
        each = sums - logits.gather(1, expected[:, None])[:, 0]
        if losses is not None:
            losses[chunk] = each
        total += (each if weights is None else each * weights[chunk]).sum()
        if not with_gradients:
            continue
        # d(loss) / d(logits) is the softmax, minus one at the target.
        logits.sub_(sums[:, None]).exp_()
        logits[torch.arange(len(expected), device=expected.device), expected] -= 1
        if cap_slope is not None:
            logits.mul_(cap_slope)
        if temperature != 1.0:
            logits.div_(temperature)
        if weights is not None:
            logits.mul_(weights[chunk, None])
        if expected_gradient != 1.0:
            logits.mul_(expected_gradient)
        if bias_gradient is not None:
            bias_gradient += logits.sum(0)
        logit_gradient = logits.to(compute_dtype)
        if hidden_gradient is not None:
            hidden_gradient[chunk] = logit_gradient @ matrix
        if weight_gradient is not None and compute_dtype == weight.dtype:
            weight_gradient.addmm_(logit_gradient.T, rows)
        elif weight_gradient is not None:
            weight_gradient += logit_gradient.T @ rows
    ctx.gradients = (hidden_gradient, weight_gradient, bias_gradient)
    return total
