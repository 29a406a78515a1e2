"""Interleaves bench_engine with PyTorch, step by step, and reports the ratio of neighbouring steps.

    python3 bench/engine_vs_torch.py BUILD_DIR/bench/bench_engine --json FILE

PyTorch runs with the settings that were its best on such machines: huge pages, memory never given back, pinned threads.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

BEST_TORCH_ENVIRONMENT = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


class Peer:
    """A program that answers "step" with seconds."""

    def __init__(self, command, environment=None):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        if self.process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{command[0]} did not start")

    def step(self):
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


def torch_environment(threads, openblas):
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    environment |= BEST_TORCH_ENVIRONMENT | {"GOMP_CPU_AFFINITY": f"0-{threads - 1}"}
    if openblas:
        environment["LD_LIBRARY_PATH"] = openblas
    return environment


def compare(arguments, model, precision):
    common = ["--threads", str(arguments.threads), "--sequences", str(arguments.sequences), "--length", str(arguments.length)]
    common += ["--cpu-time"] if arguments.cpu_time else []
    engine = Peer([arguments.bench_engine, "--serve", "--models", model, "--precisions", precision, *common])
    script = str(Path(__file__).with_name("torch_engine.py"))
    torch = Peer([arguments.python, script, "--model", model, "--precision", precision, *common],
                 torch_environment(arguments.threads, arguments.openblas))
    seconds = [(engine.step(), torch.step()) for _ in range(arguments.rounds)]
    engine.close()
    torch.close()
    tokens = arguments.sequences * arguments.length
    ratios = [theirs / ours for ours, theirs in seconds]
    return {
        "model": model,
        "precision": precision,
        "engine_tokens_per_second": tokens / statistics.median(ours for ours, _ in seconds),
        "torch_tokens_per_second": tokens / statistics.median(theirs for _, theirs in seconds),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench_engine")
    parser.add_argument("--models", nargs="+", default=["gpt2", "llama"])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sequences", type=int, default=2)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true", help="of the processes; with one thread, on a busy machine")
    parser.add_argument("--python", default="/usr/bin/python3", help="an interpreter with torch")
    parser.add_argument("--openblas", default="/usr/lib/x86_64-linux-gnu/openblas-openmp", help="folder of the BLAS for PyTorch")
    parser.add_argument("--json", help="file for the results")
    arguments = parser.parse_args()
    if arguments.openblas and not Path(arguments.openblas).is_dir():
        raise SystemExit(f"{arguments.openblas} is no folder, and with another BLAS PyTorch is many times slower: "
                         "install libopenblas0-openmp, or name the folder by --openblas ('' for a PyTorch that brings its own)")
    results = []
    for model in arguments.models:
        for precision in arguments.precisions:
            results.append(compare(arguments, model, precision))
            print(json.dumps({key: value for key, value in results[-1].items() if key != "ratios"}), file=sys.stderr)
    text = json.dumps({"schema": 1, "results": results}, indent=2)
    if arguments.json:
        Path(arguments.json).write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
