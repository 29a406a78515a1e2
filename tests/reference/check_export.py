#!/usr/bin/env python3
"""Loads an exported Hugging Face directory with transformers and compares its logits with a vectors file.

    python check_export.py MODEL_DIR VECTORS.safetensors [--dtype float32] [--max-error 1e-5]

VECTORS holds `tokens` (I32 [batch, length]) and `logits` (any float dtype [batch, length, vocabulary] or
[batch * length, vocabulary]), as make_parity_vectors.py writes them or a program that dumped its own. Exit status 0: no tensor
is missing or unexpected and ||logits - theirs|| / ||theirs|| is at most --max-error; 1: otherwise; 2: unusable input.
"""

import argparse
import pathlib
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def fail_usage(message):
    print(f"check_export: {message}", file=sys.stderr)
    raise SystemExit(2)


def read_vectors(path):
    try:
        vectors = load_file(path)
    except Exception as error:  # the library's own text says what is wrong with the file
        fail_usage(f"{path}: {error}")
    missing = {"tokens", "logits"} - vectors.keys()
    if missing:
        fail_usage(f"{path}: no tensor named {' or '.join(sorted(missing))}; it holds {', '.join(sorted(vectors)[:10])}")
    return vectors["tokens"].long(), vectors["logits"].double()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("vectors", type=pathlib.Path)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--max-error", type=float, default=1e-5)
    arguments = parser.parse_args()

    tokens, expected = read_vectors(arguments.vectors)
    if not (arguments.model / "config.json").is_file():
        fail_usage(f"{arguments.model}: no config.json in it")
    model, info = AutoModelForCausalLM.from_pretrained(
        arguments.model, torch_dtype=getattr(torch, arguments.dtype), output_loading_info=True, local_files_only=True)
    with torch.no_grad():
        logits = model.eval()(input_ids=tokens, use_cache=False).logits.double()
    if logits.numel() != expected.numel():
        fail_usage(f"logits of {tuple(logits.shape)} against {tuple(expected.shape)} in {arguments.vectors}")
    difference = logits.flatten() - expected.flatten()
    error = (difference.norm() / logits.norm()).item()
    print(f"relative error of the logits {error:.3e}, largest difference {difference.abs().max().item():.3e}")

    wrong = {kind: info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[kind]}
    for kind, names in wrong.items():
        print(f"{kind.replace('_', ' ')}: {', '.join(map(str, names))}")
    if wrong or not error <= arguments.max_error:
        print(f"FAILED (allowed {arguments.max_error:.1e})")
        return 1
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
