#!/usr/bin/env python3
"""Times the same training run with all state on NVMe and all of it on the device, in turn, and reports the ratio of step times.

usage: bench/nvme_vs_device.py [--strata build/strata] [--dir DIR] [--rounds 7] [--steps 6] [--tokens 512] [--accumulation 4]
                               [--compute fp32|bf16] [--json FILE]

Each round runs both, one after the other (the order alternates); the first step of a run is left out (it faults and creates primitives),
the median of the others counts. Beside the ratio stands the bound: the time that the store's I/O takes alone in the same run,
and that of compute.
"""
import argparse
import json
import os
import random
import statistics
import struct
import subprocess
import tempfile

MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32000, "hidden_size": 768,
    "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 12, "num_key_value_heads": 4,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": True,
    "torch_dtype": "float32"}


def run(arguments, config, name, directory):
    path = os.path.join(directory, name + ".json")
    with open(path, "w") as out:
        json.dump(config, out)
    run_directory = os.path.join(directory, name)
    subprocess.run([arguments.strata, "train", path, "--run-dir", run_directory, "--resume", "never",
                    "--discard", name], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(os.path.join(run_directory, "metrics.jsonl")) as lines:
        steps = [json.loads(line) for line in lines][1:]
    middle = lambda pick: statistics.median(pick(step) for step in steps)
    return {"seconds": middle(lambda s: s["seconds"]),
            "compute_busy": middle(lambda s: s["busy_seconds"]["compute"]),
            "nvme_busy": middle(lambda s: s["busy_seconds"]["nvme_read"] + s["busy_seconds"]["nvme_write"]),
            "nvme_bytes": middle(lambda s: s["bytes"]["nvme_read"] + s["bytes"]["nvme_write"]),
            "overlap": statistics.median([s["overlap"] for s in steps if s["overlap"] is not None] or [0.0]),
            "limit": statistics.mode(s["limit"] for s in steps)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--strata", default="build/strata")
    parser.add_argument("--dir", default=None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--accumulation", type=int, default=4)
    parser.add_argument("--compute", default="fp32")
    parser.add_argument("--update-threads", type=int, default=0)
    parser.add_argument("--json", default=None)
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        model = os.path.join(directory, "model.json")
        with open(model, "w") as out:
            json.dump(MODEL, out)
        subprocess.run([arguments.strata, "init", model, os.path.join(directory, "model")], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        random.seed(1)
        tokens = os.path.join(directory, "tokens.bin")
        with open(tokens, "wb") as out:
            out.write(b"".join(struct.pack("<H", random.randrange(32000)) for _ in range(100000)))
        base = {"model": {"path": os.path.join(directory, "model")},
                "data": {"train": [tokens], "format": "raw16", "sequence_length": arguments.tokens},
                "batch": {"micro_batch_size": 1, "gradient_accumulation_steps": arguments.accumulation},
                "precision": {"compute": arguments.compute}, "steps": arguments.steps,
                "device": {"kind": "host", "memory": "12GiB"},
                "schedule": {"update_threads": arguments.update_threads}}
        device = dict(base, placement={"parameters": "device", "gradients": "device", "optimizer": "device",
                                       "activations": "device"})
        nvme = dict(base, placement={"parameters": "nvme", "gradients": "nvme", "optimizer": "nvme",
                                     "activations": "device"},
                    tiers={"host": {"memory": "2GiB"},
                           "nvme": [{"path": os.path.join(directory, "store"), "capacity": "20GiB"}]})
        rounds = []
        for index in range(arguments.rounds):
            order = [("device", device), ("nvme", nvme)]
            if index % 2:
                order.reverse()
            result = {name: run(arguments, config, name, directory) for name, config in order}
            result["ratio"] = result["nvme"]["seconds"] / result["device"]["seconds"]
            rounds.append(result)
            print("round {}: device {:.3f} s, nvme {:.3f} s, ratio {:.3f}  (compute busy {:.3f} s, store busy {:.3f} s, "
                  "overlap {:.2f}, bound by {})".format(
                      index + 1, result["device"]["seconds"], result["nvme"]["seconds"], result["ratio"],
                      result["nvme"]["compute_busy"], result["nvme"]["nvme_busy"], result["nvme"]["overlap"],
                      result["nvme"]["limit"]), flush=True)
        summary = {"schema_version": 1, "rounds": rounds, "median_ratio": statistics.median(r["ratio"] for r in rounds),
                   "nvme_gigabytes_per_step": rounds[0]["nvme"]["nvme_bytes"] / 1e9,
                   "compute": arguments.compute, "tokens_per_step": arguments.tokens * arguments.accumulation}
        print("median ratio nvme/device {:.3f} at {} tokens a step, {:.2f} GB of NVMe traffic a step".format(
            summary["median_ratio"], summary["tokens_per_step"], summary["nvme_gigabytes_per_step"]))
        if arguments.json:
            with open(arguments.json, "w") as out:
                json.dump(summary, out, indent=2)


if __name__ == "__main__":
    main()
