"""Functions along and across axes of rows [2, time, 8]: reductions, orders, shapes, indices, products, losses."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as fn

Function = Callable[[Any], Any]

REDUCTIONS: dict[str, Function] = {
    "sum": lambda x: x.sum(),
    "sum_of_time": lambda x: x.sum(1),
    "sum_keepdim": lambda x: x.sum(-1, keepdim=True),
    "sum_of_two": lambda x: x.sum((1, 2)),
    "sum_of_ints": lambda x: (x * 4).long().sum(1),
    "mean": lambda x: x.mean(),
    "mean_of_time": lambda x: x.mean(1),
    "mean_keepdim": lambda x: x.mean(1, keepdim=True),
    "mean_of_last_two": lambda x: x.mean((-2, -1), keepdim=True),
    "prod": lambda x: (1 + 0.1 * x).prod(-1),
    "amax": lambda x: x.amax(1),
    "amax_of_two": lambda x: x.amax((1, 2), keepdim=True),
    "amin": lambda x: x.amin(-1),
    "max_all": lambda x: x.max(),
    "max_of_time": lambda x: x.max(1),
    "max_values": lambda x: x.max(-1, keepdim=True).values,
    "min_of_last": lambda x: x.min(-1),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "argmax": lambda x: x.argmax(-1),
    "argmax_of_time": lambda x: x.argmax(1),
    "argmax_keepdim": lambda x: x.argmax(-1, keepdim=True),
    "argmin": lambda x: x.argmin(1),
    "argmax_all": lambda x: x.argmax(),
    "std": lambda x: x.std(1),
    "std_all": lambda x: x.std(),
    "std_biased": lambda x: x.std(-1, unbiased=False, keepdim=True),
    "var": lambda x: x.var(1),
    "var_mean": lambda x: torch.var_mean(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "logsumexp_keepdim": lambda x: torch.logsumexp(x * 40, -1, keepdim=True),
    "norm": lambda x: x.norm(),
    "norm_of_last": lambda x: x.norm(dim=-1),
    "norm_1": lambda x: x.norm(1, dim=1, keepdim=True),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, float("inf"), dim=-1),
    "norm_3": lambda x: torch.linalg.vector_norm(x, 3, dim=1),
    "frobenius": lambda x: torch.linalg.matrix_norm(x),
    "median": lambda x: x.median(-1).values,
    "cumsum": lambda x: x.cumsum(1),
    "cumsum_of_last": lambda x: x.cumsum(-1),
    "cumsum_of_ints": lambda x: (x > 0).long().cumsum(1),
    "cumprod": lambda x: (1 + 0.1 * x).cumprod(1),
    "cummax": lambda x: x.cummax(1).values,
    "cumsum_reversed": lambda x: x.flip(1).cumsum(1).flip(1),
    "logcumsumexp": lambda x: torch.logcumsumexp(x, 1),
    "diff": lambda x: torch.diff(x, dim=1),
    "softmax": lambda x: x.softmax(-1),
    "softmax_of_time": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "log_softmax_of_time": lambda x: x.log_softmax(1),
    "log_softmax_of_large": lambda x: (x * 60).log_softmax(-1),
    "softmin": lambda x: fn.softmin(x, -1),
    "gumbel_like": lambda x: fn.softmax(x / 0.5, 2),
    "normalize": lambda x: fn.normalize(x, dim=-1),
    "normalize_of_time": lambda x: fn.normalize(x, p=1.0, dim=1),
    "zscore": lambda x: (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5),
    "zscore_biased": lambda x: (
        (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    ),
    "minmax_scale": lambda x: (
        (x - x.amin(1, keepdim=True)) / (x.amax(1, keepdim=True) - x.amin(1, keepdim=True) + 1e-6)
    ),
    "layer_norm": lambda x: fn.layer_norm(x, (8,)),
    "layer_norm_of_parts": lambda x: fn.layer_norm(x.reshape(2, -1, 2, 4), (2, 4)),
    "rms_norm": lambda x: fn.rms_norm(x, (8,)),
    "instance_norm": lambda x: fn.instance_norm(x.transpose(1, 2)),
    "group_norm": lambda x: fn.group_norm(x.transpose(1, 2), 4),
    "topk": lambda x: x.topk(3, -1),
    "topk_of_time": lambda x: x.topk(2, 1).values,
    "topk_smallest": lambda x: x.topk(2, -1, largest=False),
    "sort": lambda x: x.sort(-1),
    "sort_descending": lambda x: x.sort(-1, descending=True).values,
    "argsort": lambda x: x.argsort(-1),
    "sort_of_time": lambda x: x.sort(1).values,
    "kthvalue": lambda x: x.kthvalue(3, -1).values,
}

SHAPES: dict[str, Function] = {
    "transpose": lambda x: x.transpose(1, 2),
    "permute": lambda x: x.permute(1, 0, 2),
    "reshape": lambda x: x.reshape(2, -1, 4),
    "flatten": lambda x: x.flatten(1),
    "view_heads": lambda x: x.view(2, -1, 2, 4).transpose(1, 2),
    "unflatten": lambda x: x.unflatten(-1, (2, 4)).sum(-2),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x[:, :, :1].squeeze(-1),
    "expand": lambda x: x[:, :1].expand(-1, x.shape[1], -1) + x,
    "expand_as": lambda x: x[:, -1:].expand_as(x),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "repeat_of_last": lambda x: x[:, -1].unsqueeze(1).repeat(1, x.shape[1], 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=1),
    "tile": lambda x: torch.tile(x, (1, 1, 2)),
    "flip": lambda x: x.flip(1),
    "flip_of_two": lambda x: x.flip(1, 2),
    "roll": lambda x: x.roll(1, 1),
    "roll_of_last": lambda x: torch.roll(x, 3, -1),
    "cat": lambda x: torch.cat([x, x * 2], -1),
    "cat_of_time": lambda x: torch.cat([x[:, :1], x], 1),
    "cat_zeros": lambda x: torch.cat([torch.zeros(2, 1, 8), x[:, :-1]], 1),
    "stack": lambda x: torch.stack([x, -x], 1),
    "stack_of_last": lambda x: torch.stack([x, -x], -1).flatten(-2),
    "split": lambda x: x.split(4, -1)[1],
    "split_of_sizes": lambda x: x.split([2, 5, 1], -1),
    "chunk": lambda x: x.chunk(2, -1),
    "chunk_products": lambda x: x.chunk(2, -1)[0] * x.chunk(2, -1)[1],
    "unbind": lambda x: x.unbind(-1)[2],
    "narrow": lambda x: x.narrow(1, 1, 2),
    "pad": lambda x: fn.pad(x, (1, 2)),
    "pad_of_time": lambda x: fn.pad(x, (0, 0, 2, 0)),
    "pad_of_number": lambda x: fn.pad(x, (0, 0, 1, 1), value=0.5),
    "pad_reflect": lambda x: fn.pad(x.transpose(1, 2), (2, 2), mode="reflect").transpose(1, 2),
    "pad_replicate": lambda x: fn.pad(x.transpose(1, 2), (2, 1), mode="replicate").transpose(1, 2),
    "pad_circular": lambda x: fn.pad(x.transpose(1, 2), (2, 1), mode="circular").transpose(1, 2),
    "pad_crop": lambda x: fn.pad(x, (0, 0, -1, -1)),
    "unfold": lambda x: x.unfold(1, 3, 1),
    "unfold_of_steps": lambda x: x.unfold(1, 4, 2).flatten(2),
    "unfold_of_images": lambda x: fn.unfold(x.unsqueeze(1), (3, 3), padding=1),
    "pixel_shuffle": lambda x: fn.pixel_shuffle(x.transpose(1, 2).unflatten(1, (8, 1)), 2),
    "pixel_unshuffle": lambda x: fn.pixel_unshuffle(x.transpose(1, 2).reshape(2, 1, 4, -1), 2),
    "channel_shuffle": lambda x: fn.channel_shuffle(x.transpose(1, 2).unsqueeze(-1), 2),
    "shuffle_by_reshape": lambda x: x.reshape(2, -1, 2, 4).transpose(2, 3).reshape(2, -1, 8),
    "meshgrid": lambda x: x + torch.meshgrid(torch.arange(x.shape[1]), torch.arange(8), indexing="ij")[0],
    "arange": lambda x: x + torch.arange(x.shape[1]).unsqueeze(-1),
    "linspace": lambda x: x * torch.linspace(0, 1, 8),
    "zeros_like": lambda x: torch.cat([torch.zeros_like(x), x], -1),
    "ones_of_size": lambda x: x + torch.ones(x.shape[1], 1),
    "full": lambda x: x + torch.full((2, x.shape[1], 1), 0.5),
    "eye": lambda x: x @ torch.eye(8),
    "numel_mean": lambda x: x.sum(1) / x.shape[1],
    "positions": lambda x: torch.cat(
        [x, (torch.arange(x.shape[1]) / x.shape[1]).view(1, -1, 1).expand(2, -1, 1)], -1
    ),
}

INDICES: dict[str, Function] = {
    "last": lambda x: x[:, -1],
    "last_keepdim": lambda x: x[:, -1:],
    "all_but_first": lambda x: x[:, 1:],
    "steps_of_two": lambda x: x[:, ::2],
    "ellipsis": lambda x: x[..., 2:5],
    "middle": lambda x: x[:, x.shape[1] // 2],
    "list_of_rows": lambda x: x[:, [0, 2, 1]],
    "channels_of_list": lambda x: x[..., [0, 3, 7]],
    "none": lambda x: x[:, None, :, 0],
    "two_tensors": lambda x: x[torch.arange(2), torch.tensor([1, 3])],
    "by_argmax": lambda x: x[torch.arange(2), x[:, :, 0].argmax(1)],
    "gather": lambda x: x.gather(2, x.argsort(-1)),
    "gather_of_time": lambda x: x.gather(1, torch.tensor([1, 3]).view(2, 1, 1).expand(2, 1, 8)),
    "take_along_dim": lambda x: torch.take_along_dim(x, x.argmax(-1, keepdim=True), -1),
    "index_select": lambda x: x.index_select(1, torch.tensor([0, 2])),
    "index_add": lambda x: x.index_add(2, torch.tensor([0, 2]), x[..., :2]),
    "index_fill": lambda x: x.index_fill(2, torch.tensor([1]), 0.0),
    "scatter": lambda x: torch.zeros_like(x).scatter(2, x.argmax(-1, keepdim=True), 1.0),
    "scatter_of_source": lambda x: torch.zeros_like(x).scatter(2, x.argsort(-1), x),
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add(2, (x > 0).long(), x),
    "scatter_amax": lambda x: torch.zeros_like(x).scatter_reduce(2, (x > 0).long(), x, "amax"),
    "masked_scatter": lambda x: x.masked_scatter(x > 0, x * 2),
    "select_scatter": lambda x: torch.select_scatter(x, x[:, 1] * 2, 1, 0),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:, 1:2] * 2, 1, 0, 1),
    "assigned": lambda x: _assigned(x),
    "assigned_column": lambda x: _assigned_column(x),
    "embedding_lookup": lambda x: fn.embedding(x.argmax(-1), torch.arange(32.0).reshape(8, 4)),
    "embedding_bag": lambda x: fn.embedding_bag(x.argmax(-1), torch.arange(32.0).reshape(8, 4)),
    "tril": lambda x: torch.tril(x),
    "triu": lambda x: torch.triu(x, 1),
    "tril_of_scores": lambda x: torch.tril(x @ x.transpose(1, 2), 1),
    "diagonal": lambda x: torch.diagonal(x @ x.transpose(1, 2), dim1=1, dim2=2),
    "diag_embed": lambda x: torch.diag_embed(x[:, -1]),
    "length_mask": lambda x: x * (torch.arange(x.shape[1])[None] < torch.tensor([[3], [5]])).unsqueeze(-1),
}

PRODUCTS: dict[str, Function] = {
    "matmul": lambda x: x @ x.transpose(1, 2),
    "matmul_of_vector": lambda x: x @ torch.arange(8.0),
    "bmm": lambda x: torch.bmm(x.transpose(1, 2), x),
    "baddbmm": lambda x: torch.baddbmm(x, x, torch.ones(2, 8, 8), beta=0.5, alpha=2.0),
    "outer": lambda x: x[:, -1].unsqueeze(2) * x[:, -1].unsqueeze(1),
    "dot_of_last": lambda x: (x * x.flip(1)).sum(-1),
    "einsum": lambda x: torch.einsum("btc,bsc->bts", x, x),
    "einsum_of_heads": lambda x: torch.einsum("bthd,bshd->bhts", x.view(2, -1, 2, 4), x.view(2, -1, 2, 4)),
    "einsum_of_weights": lambda x: torch.einsum("btc,cd->btd", x, torch.ones(8, 3)),
    "einsum_of_three": lambda x: torch.einsum("bti,ij,bsj->bts", x, torch.ones(8, 8), x),
    "einsum_outer": lambda x: torch.einsum("bi,bj->bij", x[:, -1], x[:, 0]),
    "einsum_sum": lambda x: torch.einsum("btc->bc", x),
    "einsum_diagonal": lambda x: torch.einsum("btc,btc->bt", x, x),
    "tensordot": lambda x: torch.tensordot(x, torch.ones(8, 3), dims=([2], [0])),
    "linear": lambda x: fn.linear(x, torch.ones(3, 8), torch.ones(3)),
    "bilinear": lambda x: fn.bilinear(x, x, torch.ones(3, 8, 8)),
    "cosine_similarity": lambda x: fn.cosine_similarity(x, x.flip(1), dim=-1),
    "cosine_matrix": lambda x: fn.normalize(x, dim=-1) @ fn.normalize(x, dim=-1).transpose(1, 2),
    "pairwise_distance": lambda x: fn.pairwise_distance(x[:, 0], x[:, -1]),
    "cdist": lambda x: torch.cdist(x, x + 1),
    "cdist_by_hand": lambda x: (x.unsqueeze(2) - x.unsqueeze(1)).pow(2).sum(-1),
    "kron_like": lambda x: (x[..., None] * torch.ones(3)).flatten(2),
    "complex_product": lambda x: torch.stack(
        [x[..., 0::2] * x[..., 0::2] - x[..., 1::2] ** 2, 2 * x[..., 0::2] * x[..., 1::2]], -1
    ).flatten(-2),
    "magnitude_phase": lambda x: (torch.hypot(x[..., 0::2], x[..., 1::2]), torch.atan2(x[..., 1::2], x[..., 0::2])),
    "rotary": lambda x: (
        x * torch.cos(torch.arange(x.shape[1]).view(1, -1, 1) * 0.1)
        + torch.cat([-x[..., 4:], x[..., :4]], -1) * torch.sin(torch.arange(x.shape[1]).view(1, -1, 1) * 0.1)
    ),
    "sdpa": lambda x: fn.scaled_dot_product_attention(x, x, x),
    "sdpa_causal": lambda x: fn.scaled_dot_product_attention(x, x, x, is_causal=True),
    "sdpa_of_heads": lambda x: fn.scaled_dot_product_attention(*[x.view(2, -1, 2, 4).transpose(1, 2)] * 3),
    "sdpa_masked": lambda x: fn.scaled_dot_product_attention(x, x, x, attn_mask=(x[..., 0] > -9).unsqueeze(1)),
    "sdpa_float_mask": lambda x: fn.scaled_dot_product_attention(x, x, x, attn_mask=x[..., 0].unsqueeze(1)),
    "attention_pooling": lambda x: (x[..., :1].softmax(1) * x).sum(1),
    "attention_by_hand": lambda x: ((x @ x.transpose(1, 2)) / 8**0.5).softmax(-1) @ x,
    "attention_banded": lambda x: (
        (x @ x.transpose(1, 2))
        .masked_fill((torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])).abs() > 2, -1e9)
        .softmax(-1)
        @ x
    ),
    "attention_triangular": lambda x: (
        (x @ x.transpose(1, 2) + torch.triu(torch.full((x.shape[1], x.shape[1]), float("-inf")), 1)).softmax(-1) @ x
    ),
}

LOSSES: dict[str, Function] = {
    "mse_loss": lambda x: fn.mse_loss(x, x.flip(1)),
    "mse_of_rows": lambda x: fn.mse_loss(x, x.flip(1), reduction="none").mean((1, 2)),
    "l1_loss": lambda x: fn.l1_loss(x, x.flip(1)),
    "smooth_l1_loss": lambda x: fn.smooth_l1_loss(x, x.flip(1)),
    "huber_loss": lambda x: fn.huber_loss(x, x.flip(1), delta=0.5),
    "cross_entropy": lambda x: fn.cross_entropy(x.transpose(1, 2), x.flip(1).argmax(-1)),
    "cross_entropy_of_rows": lambda x: fn.cross_entropy(x[:, -1], torch.tensor([1, 5]), reduction="none"),
    "nll_loss": lambda x: fn.nll_loss(x[:, -1].log_softmax(-1), torch.tensor([1, 5])),
    "kl_div": lambda x: fn.kl_div(x.log_softmax(-1), x.flip(1).softmax(-1), reduction="batchmean"),
    "bce": lambda x: fn.binary_cross_entropy(x.sigmoid(), (x.flip(1) > 0).float()),
    "bce_with_logits": lambda x: fn.binary_cross_entropy_with_logits(x, (x.flip(1) > 0).float()),
    "gaussian_nll": lambda x: fn.gaussian_nll_loss(x, x.flip(1), x**2 + 0.1),
    "cosine_embedding": lambda x: fn.cosine_embedding_loss(x[:, 0], x[:, -1], torch.tensor([1.0, -1.0])),
    "entropy": lambda x: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1),
    "perplexity": lambda x: torch.exp(-x.log_softmax(-1).amax(-1).mean(1)),
}


def _assigned(x: Any) -> Any:
    y = x.clone()
    y[:, 0] = 0.0
    return y


def _assigned_column(x: Any) -> Any:
    y = torch.zeros(2, x.shape[1], 8)
    y[:, :, 1:3] = x[:, :, :2]
    return y


ROWS: dict[str, Function] = REDUCTIONS | SHAPES | INDICES | PRODUCTS | LOSSES
