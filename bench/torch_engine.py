"""The peer of bench_engine: forward and backward of the same two models in PyTorch.

Answers each input line "step" with the seconds of one forward and backward (bench/engine_vs_torch.py drives it).
bf16 is autocast over fp32 weights, which is PyTorch's own way and its fastest on CPUs.
"""
import argparse
import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional

SHAPES = {
    "gpt2": dict(vocab=50257, width=768, layers=12, heads=12, kv_heads=12, inner=3072),
    "llama": dict(vocab=32000, width=1024, layers=12, heads=16, kv_heads=4, inner=2816),
}


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return scaled.to(x.dtype) * self.weight


def rotate(x, cosines, sines):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)


class Attention(nn.Module):
    def __init__(self, shape, length, rotary):
        super().__init__()
        self.heads, self.kv_heads = shape["heads"], shape["kv_heads"]
        self.head_dim = shape["width"] // self.heads
        self.rotary = rotary
        columns = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.qkv = nn.Linear(shape["width"], columns, bias=not rotary)
        self.out = nn.Linear(shape["width"], shape["width"], bias=not rotary)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1), persistent=False)
        if rotary:
            frequencies = 10000.0 ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
            angles = torch.outer(torch.arange(length).float(), frequencies)
            self.register_buffer("cosines", angles.cos(), persistent=False)
            self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, x):
        batch, length, width = x.shape
        sizes = [count * self.head_dim for count in (self.heads, self.kv_heads, self.kv_heads)]
        q, k, v = (
            part.view(batch, length, -1, self.head_dim).transpose(1, 2) for part in self.qkv(x).split(sizes, dim=-1)
        )
        if self.rotary:
            cosines, sines = self.cosines.to(q.dtype), self.sines.to(q.dtype)
            q, k = rotate(q, cosines, sines), rotate(k, cosines, sines)
        if self.kv_heads != self.heads:
            k, v = (part.repeat_interleave(self.heads // self.kv_heads, dim=1) for part in (k, v))
        scores = (q * (1 / math.sqrt(self.head_dim))) @ k.transpose(-1, -2)
        probabilities = (scores + self.mask.to(scores.dtype)).softmax(-1)
        return self.out((probabilities.to(v.dtype) @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, kind, shape, length):
        super().__init__()
        self.gated = kind == "llama"
        norm = RmsNorm if self.gated else nn.LayerNorm
        self.attention_norm, self.mlp_norm = norm(shape["width"]), norm(shape["width"])
        self.attention = Attention(shape, length, rotary=self.gated)
        self.up = nn.Linear(shape["width"], shape["inner"] * (2 if self.gated else 1), bias=not self.gated)
        self.down = nn.Linear(shape["inner"], shape["width"], bias=not self.gated)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        up = self.up(self.mlp_norm(x))
        if self.gated:
            gate, up = up.chunk(2, dim=-1)
            return x + self.down(functional.silu(gate) * up)
        return x + self.down(functional.gelu(up))


class Model(nn.Module):
    def __init__(self, kind, length):
        super().__init__()
        shape = SHAPES[kind]
        self.tokens = nn.Embedding(shape["vocab"], shape["width"])
        self.positions = nn.Embedding(1024, shape["width"]) if kind == "gpt2" else None
        self.blocks = nn.ModuleList(Block(kind, shape, length) for _ in range(shape["layers"]))
        self.norm = (nn.LayerNorm if kind == "gpt2" else RmsNorm)(shape["width"])
        self.head = nn.Linear(shape["width"], shape["vocab"], bias=False)
        if kind == "gpt2":
            self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SHAPES, default="gpt2")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sequences", type=int, default=2)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--cpu-time", action="store_true", help="of the process; with one thread, on a busy machine")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model = Model(arguments.model, arguments.length)
    tokens = torch.randint(0, SHAPES[arguments.model]["vocab"], (arguments.sequences, arguments.length))

    clock = time.process_time if arguments.cpu_time else time.perf_counter

    def step():
        model.zero_grad(set_to_none=True)
        start = clock()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=arguments.precision == "bf16"):
            logits = model(tokens)
            loss = functional.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())
        loss.backward()
        return clock() - start

    for _ in range(2):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() != "step":
            break
        print(step(), flush=True)


if __name__ == "__main__":
    main()
