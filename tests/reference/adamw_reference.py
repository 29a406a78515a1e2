#!/usr/bin/env python3
"""Writes adamw.json: what torch.optim.AdamW makes of a few small tensors, for tests/cpu_adam/adam_values_test.cpp.

Usage: python3 tests/reference/adamw_reference.py > tests/reference/adamw.json     (needs PyTorch; made with 1.13)
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
]


def numbers(tensor):
    return [float(f"{x:.9g}") for x in tensor.tolist()]


def run(case, seed):
    generator = torch.Generator().manual_seed(seed)
    parameter = torch.nn.Parameter(torch.randn(ELEMENTS, generator=generator))
    optimizer = torch.optim.AdamW([parameter], lr=case["lr"], betas=tuple(case["betas"]), eps=case["eps"],
                                  weight_decay=case["weight_decay"], foreach=False)
    result = {key: case[key] for key in ("name", "betas", "eps", "weight_decay")}
    result["initial"] = numbers(parameter.data)
    result["steps"] = []
    for step in range(STEPS):
        lr = case["lr"] * (1 - step / STEPS) if case.get("falling") else case["lr"]
        optimizer.param_groups[0]["lr"] = lr
        # Gradients over many orders of magnitude, and some exact zeros.
        gradient = torch.randn(ELEMENTS, generator=generator) * 10 ** torch.linspace(-6, 2, ELEMENTS)
        gradient[step % ELEMENTS] = 0
        parameter.grad = gradient
        optimizer.step()
        state = optimizer.state[parameter]
        result["steps"].append({"lr": lr, "gradient": numbers(gradient), "parameter": numbers(parameter.data),
                                "exp_avg": numbers(state["exp_avg"]), "exp_avg_sq": numbers(state["exp_avg_sq"])})
    return result


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    cases = [run(case, seed) for seed, case in enumerate(CASES, start=1)]
    text = json.dumps({"torch": torch.__version__, "cases": cases}, separators=(",", ":"))
    print(text.replace('{"lr"', '\n{"lr"').replace('{"name"', '\n{"name"'))  # a step a line
