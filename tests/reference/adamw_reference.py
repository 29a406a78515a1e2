#!/usr/bin/env python3
"""Writes adamw.json: what torch.optim.AdamW makes of a few small tensors, for tests/cpu_adam/adam_values_test.cpp.

Usage: python3 tests/reference/adamw_reference.py > tests/reference/adamw.json     (needs PyTorch; made with 1.13, the
last case with 2.15, whose other cases agree to 6e-6)
"""
import json

import torch

ELEMENTS = 16
STEPS = 8
CASES = [
    dict(name="defaults", lr=1e-3, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.01),
    dict(name="no decay, llama betas", lr=3e-4, betas=[0.9, 0.95], eps=1e-5, weight_decay=0.0),
    dict(name="large lr and decay", lr=0.5, betas=[0.5, 0.9], eps=1e-3, weight_decay=0.3),
    dict(name="falling lr", lr=2e-3, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.1, falling=True),
    dict(name="no momentum", lr=1e-2, betas=[0.0, 0.99], eps=1e-8, weight_decay=0.01),
    # Two parameter groups: [first, count] of the elements is a bias with a weight decay of 0.
    dict(name="decay of the matrix alone", lr=1e-2, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.3, undecayed=[10, 6]),
]


def numbers(tensor):
    return [float(f"{x:.9g}") for x in tensor.tolist()]


def run(case, seed):
    generator = torch.Generator().manual_seed(seed)
    initial = torch.randn(ELEMENTS, generator=generator)
    first, count = case.get("undecayed", [ELEMENTS, 0])
    parts = [slice(0, first)] + ([slice(first, first + count)] if count else [])
    parameters = [torch.nn.Parameter(initial[part].clone()) for part in parts]
    groups = [dict(params=[parameter], weight_decay=decay) for parameter, decay in zip(parameters, [case["weight_decay"], 0.0])]
    optimizer = torch.optim.AdamW(groups, lr=case["lr"], betas=tuple(case["betas"]), eps=case["eps"], foreach=False)
    result = {key: case[key] for key in ("name", "betas", "eps", "weight_decay", "undecayed") if key in case}
    result["initial"] = numbers(initial)
    result["steps"] = []
    for step in range(STEPS):
        lr = case["lr"] * (1 - step / STEPS) if case.get("falling") else case["lr"]
        for group in optimizer.param_groups:
            group["lr"] = lr
        # Gradients over many orders of magnitude, and some exact zeros.
        gradient = torch.randn(ELEMENTS, generator=generator) * 10 ** torch.linspace(-6, 2, ELEMENTS)
        gradient[step % ELEMENTS] = 0
        for parameter, part in zip(parameters, parts):
            parameter.grad = gradient[part].clone()
        optimizer.step()
        whole = {name: torch.cat([optimizer.state[parameter][name] for parameter in parameters]) for name in ("exp_avg", "exp_avg_sq")}
        result["steps"].append({"lr": lr, "gradient": numbers(gradient),
                                "parameter": numbers(torch.cat([parameter.data for parameter in parameters])),
                                "exp_avg": numbers(whole["exp_avg"]), "exp_avg_sq": numbers(whole["exp_avg_sq"])})
    return result


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    cases = [run(case, seed) for seed, case in enumerate(CASES, start=1)]
    text = json.dumps({"torch": torch.__version__, "cases": cases}, separators=(",", ":"))
    print(text.replace('{"lr"', '\n{"lr"').replace('{"name"', '\n{"name"'))  # a step a line
