"""Which operators a program may use: tensor arithmetic and nothing else.

A program comes from the network, so the list is closed: no operator here reads a file, a clock or a random
generator, changes its arguments, or has a result whose *shape* depends on the data.
"""

from __future__ import annotations

_TENSOR_ARITHMETIC = """
    __and__ __lshift__ __or__ __rshift__ __xor__ _log_softmax _softmax _to_copy _unsafe_view _upsample_bicubic2d_aa
    _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d _weight_norm abs absolute acos acosh
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d add addbmm addcdiv addcmul addmm addmv addr adjoint affine_grid_generator alias all amax
    amin aminmax any arange arccos arcsin arctan argmax argmin argsort as_strided asin asinh atan atan2 atanh
    atleast_1d atleast_2d atleast_3d avg_pool1d avg_pool2d avg_pool3d baddbmm batch_norm bilinear
    binary_cross_entropy binary_cross_entropy_with_logits bitwise_and bitwise_left_shift bitwise_not bitwise_or
    bitwise_right_shift bitwise_xor block_diag bmm broadcast_tensors broadcast_to bucketize cat cdist ceil celu
    chain_matmul channel_shuffle chunk clamp clamp_max clamp_min clip clone col2im column_stack complex concat
    constant_pad_nd contiguous conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
    convolution copy cos cosh cosine_embedding_loss cosine_similarity count_nonzero cross cross_entropy_loss cummax
    cummin cumprod cumsum deg2rad detach diag diag_embed diagflat diagonal diff digamma dist div divide dot dstack
    einsum elu embedding embedding_bag empty_like eq erf erfc erfinv exp exp2 expand expand_as expm1 eye fft_fft
    fft_fft2 fft_fftn fft_fftshift fft_ifft fft_ifft2 fft_ifftn fft_ifftshift fft_irfft fft_irfft2 fft_irfftn
    fft_rfft fft_rfft2 fft_rfftn fill flatten flip fliplr flipud float_power floor floor_divide fmax fmin fmod frac
    frobenius_norm full full_like gather ge gelu glu greater greater_equal grid_sampler grid_sampler_2d
    grid_sampler_3d group_norm gru gru_cell gt hann_window hardshrink hardsigmoid hardswish hardtanh heaviside
    hinge_embedding_loss hstack huber_loss hypot im2col imag index index_add index_copy index_fill index_put
    index_select inner instance_norm isclose isfinite isin isinf isnan kl_div kron kthvalue l1_loss layer_norm le
    leaky_relu lerp less less_equal lgamma lift_fresh_copy linalg_cholesky linalg_cross linalg_det linalg_inv
    linalg_matrix_norm linalg_matrix_power linalg_multi_dot linalg_norm linalg_pinv linalg_slogdet linalg_solve
    linalg_svdvals linalg_vector_norm linear linspace log log10 log1p log2 log_sigmoid log_softmax logaddexp
    logaddexp2 logcumsumexp logdet logical_and logical_not logical_or logical_xor logit logspace logsumexp lstm
    lstm_cell lt mH mT margin_ranking_loss masked_fill masked_scatter matmul matrix_exp max max_pool1d max_pool2d
    max_pool2d_with_indices max_pool3d max_unpool2d maximum mean median meshgrid min minimum mish mm mode moveaxis
    movedim mse_loss mul multi_margin_loss multilabel_margin_loss multiply mv mvlgamma nan_to_num nanmean nanmedian
    nanquantile nansum narrow native_group_norm native_layer_norm ne neg negative new_empty new_full new_ones
    new_zeros nll_loss nll_loss2d nll_loss_nd norm not_equal numpy_T one_hot ones ones_like outer pad
    pairwise_distance pdist permute pixel_shuffle pixel_unshuffle poisson_nll_loss polar positive pow prelu prod
    quantile rad2deg ravel real reciprocal reflection_pad1d reflection_pad2d reflection_pad3d relu relu6 remainder
    renorm repeat repeat_interleave replication_pad1d replication_pad2d replication_pad3d reshape reshape_as
    resolve_conj resolve_neg rms_norm rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell roll rot90 round rsqrt rsub
    scalar_tensor scaled_dot_product_attention scatter scatter_add scatter_reduce searchsorted select select_scatter
    selu sgn sigmoid sign silu sin sinc sinh slice slice_scatter smooth_l1_loss soft_margin_loss softmax softplus
    softshrink sort special_erf special_erfc special_expit special_log1p special_log_ndtr special_log_softmax
    special_logit special_ndtr special_softmax special_xlogy split split_with_sizes sqrt square squeeze stack std
    std_mean sub subtract sum swapaxes swapdims t take take_along_dim tan tanh tensor_split tensordot threshold tile
    to topk trace transpose tril tril_indices triplet_margin_loss triu triu_indices true_divide trunc type_as unbind
    unflatten unfold unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze upsample_bicubic2d
    upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
    upsample_trilinear3d var var_mean vdot view view_as view_as_complex view_as_real vstack where xlogy zero zeros
    zeros_like
"""
_ALLOWED = frozenset(_TENSOR_ARITHMETIC.split())

_DRAWS = """
    alpha_dropout bernoulli binomial cauchy exponential feature_alpha_dropout fractional_max_pool2d
    fractional_max_pool3d geometric log_normal multinomial normal poisson rand rand_like randint randint_like randn
    randn_like randperm random rrelu rrelu_with_noise uniform
"""
# Random operators torch offers; ours are drawn by row (`randomness.py`), these cannot be.
RANDOM = frozenset(_DRAWS.split())

# Our own operators, and how many arguments each takes.
OURS = {"potluck.dropout": 4, "potluck.batch_norm": 5, "potluck.attention_dropout": 9}

_ALIASING = """
    adjoint alias broadcast_tensors broadcast_to chunk contiguous detach diagonal expand expand_as flatten imag mH
    mT moveaxis movedim narrow numpy_T permute positive ravel real reshape reshape_as select slice split
    split_with_sizes squeeze swapaxes swapdims t tensor_split transpose unbind unflatten unfold unsqueeze view
    view_as view_as_complex view_as_real
"""
# Results alias their input, so they cost no memory of their own.
VIEWS = frozenset(_ALIASING.split())

# Results may alias an input although the operator's schema does not say so.
UNDECLARED_VIEWS = frozenset(
    {"atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors", "channel_shuffle", "einsum", "meshgrid", "type_as"}
)

# Overloads that write their result into an argument, beside those that say "out".
_WRITING = frozenset(
    """
    dim_max dim_min dim_values dimname_values dimname_values_stable names_dim_max names_dim_min names_dim_values values
    values_stable
    """.split()  # noqa: SIM905  (as readable as the lists above)
)


def base_name(op: str) -> str:
    """The operator without name space and overload: "aten.add_.Tensor" → "add_"."""
    return op.split(".")[1]


def allowed(op: str) -> bool:
    """Whether a program may call it."""
    if op in OURS:
        return True
    parts = op.split(".")
    if len(parts) != 3 or parts[0] != "aten" or parts[1] not in _ALLOWED:
        return False
    writes = parts[2] in _WRITING or "out" in parts[2].split("_") or parts[2].startswith("Out")
    return not writes
