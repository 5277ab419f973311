"""Which operators a program may use: tensor arithmetic and nothing else.

A program comes from the network, so the list is closed: no operator here reads a file, a clock or a random
generator, changes its arguments, or has a result whose *shape* depends on the data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from potluck.errors import InputError

_ALLOWED = frozenset(
    """
    __and__ __or__ __xor__ __lshift__ __rshift__ _log_softmax _softmax _to_copy _unsafe_view abs acos acosh adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d add addbmm addcdiv addcmul addmm addmv alias all amax
    amin aminmax any arange arccos arcsin arctan argmax argmin argsort as_strided asin asinh atan atan2 atanh
    avg_pool1d avg_pool2d avg_pool3d baddbmm batch_norm bilinear binary_cross_entropy
    binary_cross_entropy_with_logits bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift
    bitwise_xor bmm broadcast_to bucketize cat cdist ceil celu channel_shuffle chunk clamp clamp_max clamp_min clone
    concat constant_pad_nd contiguous conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    convolution copy cos cosh cosine_embedding_loss cosine_similarity cross_entropy_loss cummax cummin cumprod cumsum
    deg2rad detach diag diag_embed diagonal diff div dot einsum elu embedding embedding_bag empty_like eq erf erfc
    erfinv exp exp2 expand expand_as expm1 eye fill flatten flip fliplr flipud floor floor_divide fmax fmin fmod frac
    frobenius_norm full full_like gather ge gelu glu grid_sampler grid_sampler_2d group_norm gru gt hann_window
    hardshrink hardsigmoid hardswish hardtanh hinge_embedding_loss huber_loss hypot im2col index index_add
    index_copy index_fill index_put index_select inner instance_norm isfinite isinf isnan kl_div l1_loss layer_norm le
    leaky_relu lerp lgamma lift_fresh_copy linalg_vector_norm linear linspace log log10 log1p log2 log_sigmoid
    log_softmax logaddexp logaddexp2 logcumsumexp logical_and logical_not logical_or logical_xor logit logsumexp lstm
    lt margin_ranking_loss masked_fill masked_scatter matmul max max_pool1d max_pool2d max_pool2d_with_indices
    max_pool3d maximum mean median meshgrid min minimum mish mm moveaxis movedim mse_loss mul multi_margin_loss
    multilabel_margin_loss mv narrow native_group_norm native_layer_norm ne neg new_empty new_full new_ones
    new_zeros nll_loss nll_loss2d nll_loss_nd norm one_hot ones ones_like outer pad pairwise_distance permute
    pixel_shuffle pixel_unshuffle poisson_nll_loss pow prelu prod rad2deg reciprocal reflection_pad1d reflection_pad2d
    relu relu6 remainder repeat repeat_interleave replication_pad1d replication_pad2d reshape reshape_as rms_norm
    rnn_relu rnn_tanh roll rot90 round rsqrt rsub scalar_tensor scaled_dot_product_attention scatter scatter_add
    scatter_reduce searchsorted select select_scatter selu sgn sigmoid sign silu sin sinc sinh slice slice_scatter
    smooth_l1_loss soft_margin_loss softmax softplus softshrink softsign sort split split_with_sizes sqrt square
    squeeze stack std std_mean sub sum swapaxes swapdims t take take_along_dim tan tanh tanhshrink tensor_split
    threshold tile to topk transpose tril triplet_margin_loss triu true_divide trunc type_as unbind unflatten unfold
    unsafe_chunk unsafe_split unsqueeze upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d
    upsample_nearest2d upsample_nearest3d upsample_trilinear3d var var_mean vdot view view_as where xlogy zeros
    zeros_like zero
    """.split()
)

# Random operators torch offers; ours are drawn by row (`randomness.py`), these cannot be.
RANDOM = frozenset(
    """
    alpha_dropout bernoulli exponential feature_alpha_dropout geometric log_normal multinomial normal
    poisson rand rand_like randint randint_like randn randn_like randperm random rrelu uniform cauchy
    """.split()
)

OURS = frozenset({"potluck.dropout", "potluck.batch_norm", "potluck.attention_dropout"})

# Results alias their input, so they cost no memory of their own.
VIEWS = frozenset(
    """
    alias broadcast_to chunk contiguous detach diagonal expand expand_as flatten movedim moveaxis narrow permute
    reshape reshape_as select slice split split_with_sizes squeeze swapaxes swapdims t tensor_split transpose unbind
    unflatten unfold unsqueeze view view_as
    """.split()
)


def base_name(op: str) -> str:
    """The operator without name space and overload: "aten.add_.Tensor" → "add_"."""
    return op.split(".")[1]


def allowed(op: str) -> bool:
    """Whether a program may call it."""
    if op in OURS:
        return True
    parts = op.split(".")
    return len(parts) == 3 and parts[0] == "aten" and parts[1] in _ALLOWED and parts[2] != "out"


def look_up(op: str) -> Callable[..., Any]:
    """The torch operator of a name on the list; refuses every other name."""
    if not allowed(op) or op in OURS:
        raise InputError(f"program: operator {op} is not on the list of tensor operators; refused")
    _, name, overload = op.split(".")
    found = getattr(getattr(torch.ops.aten, name, None), overload, None)
    if found is None:
        raise InputError(f"program: this device's torch {torch.__version__} has no operator {op}; update torch here")
    return found  # type: ignore[no-any-return]
