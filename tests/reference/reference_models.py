"""The tiny models that Strata is compared with, and Hugging Face's forward pass made exact in float64."""

import contextlib
import math

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

GPT2 = dict(
    vocab_size=101, n_positions=32, n_embd=32, n_layer=2, n_head=4, n_inner=None, activation_function="gelu_new",
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.1, bos_token_id=0, eos_token_id=0)
LLAMA = dict(
    vocab_size=71, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=10000.0, attention_dropout=0.0,
    tie_word_embeddings=False, initializer_range=0.1, bos_token_id=0, eos_token_id=0)


def llama(**changes):
    return LlamaConfig(**{**LLAMA, **changes})


# Wider initial weights than usual: with 0.02 a model this small would hardly attend, and mistakes would hide.
# Head dimension 16 where the rotary scaling is under test, so that every branch of its formula has a frequency.
WIDE_HEADS = dict(num_attention_heads=2, num_key_value_heads=1)
VARIANTS = {
    "gpt2": (GPT2Config(**GPT2), dict(hub_names=True)),
    "gpt2_untied": (GPT2Config(**{**GPT2, "n_inner": 72, "vocab_size": 64}, tie_word_embeddings=False), {}),
    "llama_mha": (llama(vocab_size=64, hidden_size=48, num_attention_heads=3, num_key_value_heads=3), {}),
    "llama_gqa": (llama(num_key_value_heads=2), {}),
    "llama_tied": (llama(num_attention_heads=3, num_key_value_heads=1, hidden_size=48, tie_word_embeddings=True), {}),
    "llama_rope_llama3": (llama(**WIDE_HEADS, rope_scaling=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=32)), {}),
    "llama_rope_linear": (llama(**WIDE_HEADS, rope_scaling=dict(rope_type="linear", factor=2.5)),
                          dict(legacy_rope_type=True)),
    "llama_rope_dynamic": (llama(**WIDE_HEADS, max_position_embeddings=16, rope_scaling=dict(
        rope_type="dynamic", factor=2.0)), {}),
    "llama_rope_yarn": (llama(**WIDE_HEADS, max_position_embeddings=128, rope_theta=1000.0, rope_scaling=dict(
        rope_type="yarn", factor=4.0, beta_fast=2.0, beta_slow=0.25, original_max_position_embeddings=32)), {}),
    "llama_attention_bias": (llama(num_key_value_heads=2, attention_bias=True), {}),
    "llama_mlp_bias": (llama(num_key_value_heads=2, mlp_bias=True), {}),
    "mistral_window": (MistralConfig(**{**LLAMA, "num_key_value_heads": 2}, head_dim=8, sliding_window=7), {}),
    "qwen2": (Qwen2Config(**{**LLAMA, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
                             "tie_word_embeddings": True}), {}),
    "qwen2_window": (Qwen2Config(**{**LLAMA, "num_key_value_heads": 2}, use_sliding_window=True, sliding_window=5,
                                 max_window_layers=1), {}),
    "qwen3": (Qwen3Config(**{**LLAMA, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1e6},
                          head_dim=12), {}),
    "qwen3_tied": (Qwen3Config(**{**LLAMA, "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
                                  "num_attention_heads": 2}, head_dim=20), {}),
}
# Many short sequences, for gradient accumulation; every other array of these is left out.
SMALL = dict(vocab_size=61, hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2)
ACCUMULATION_VARIANTS = {
    "accumulate_gpt2": (GPT2Config(**{**GPT2, "vocab_size": 61, "n_embd": 16, "n_positions": 8}), dict(length=8)),
    "accumulate_llama": (llama(**SMALL), dict(length=8)),
}


def rope_frequencies(config, length):
    """Inverse frequencies in double precision and the factor on cos and sin, written from the papers' formulas."""
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    scaling = getattr(config, "rope_scaling", None) or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    base, factor = config.rope_theta, scaling.get("factor", 1.0)
    if kind == "dynamic" and length > config.max_position_embeddings:
        stretch = factor * length / config.max_position_embeddings - (factor - 1)
        base *= stretch ** (dim / (dim - 2))
    plain = [base ** (-2.0 * i / dim) for i in range(dim // 2)]
    attention_factor = 1.0
    if kind == "linear":
        plain = [f / factor for f in plain]
    elif kind == "llama3":
        positions = scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        for i, f in enumerate(plain):
            turns = positions * f / (2 * math.pi)  # rotations over the original context
            keep = min(1.0, max(0.0, (turns - low) / (high - low)))
            plain[i] = keep * f + (1 - keep) * f / factor
    elif kind == "yarn":
        positions = scaling["original_max_position_embeddings"]

        def index_of(rotations):
            return dim * math.log(positions / (rotations * 2 * math.pi)) / (2 * math.log(base))

        first = max(math.floor(index_of(scaling["beta_fast"])), 0)
        last = min(math.ceil(index_of(scaling["beta_slow"])), dim - 1)
        for i, f in enumerate(plain):
            interpolate = min(1.0, max(0.0, (i - first) / (last - first)))
            plain[i] = interpolate * f / factor + (1 - interpolate) * f
        attention_factor = 0.1 * math.log(factor) + 1.0
    return torch.tensor(plain, dtype=torch.float64), attention_factor


def make_exact(model, length):
    """Turns `model` into float64 throughout. transformers computes norms and rotary tables in float32 whatever the dtype;
    those two are replaced by the same formulas in double. Use with attention "sdpa", which keeps the dtype."""
    model.double()
    for module in model.modules():
        name = type(module).__name__
        if name.endswith("RMSNorm"):
            module.forward = _exact_rms_norm(module)
        elif name.endswith("RotaryEmbedding"):
            frequencies, factor = rope_frequencies(model.config, length)
            module.forward = _exact_rope(frequencies, factor)
    return model


def _exact_rms_norm(module):
    def forward(x):
        return module.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon))
    return forward


def _exact_rope(frequencies, factor):
    def forward(x, position_ids):
        angles = position_ids[:, :, None].double() * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos() * factor, angles.sin() * factor
    return forward


class OnlyFloat64(TorchDispatchMode):
    """Fails when any operation yields a floating-point tensor that is not float64."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.numel() > 1:
                assert tensor.dtype == torch.float64, f"{function} gave {tensor.dtype}"
        return result


@contextlib.contextmanager
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
