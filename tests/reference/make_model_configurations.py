"""What transformers makes of configurations: RoPE frequencies and sliding windows, or that it refuses them.

Writes model_configurations.json, which tests/core/model_reference_test.cpp reads the same configurations against.
Made with transformers 5; the frequencies are its own (fp32), from its own rotary embedding after a forward pass at `length`.
"""

import argparse
import copy
import json
import pathlib

import torch
import transformers
from transformers import AutoConfig

SIZES = dict(hidden_size=64, intermediate_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             vocab_size=50, max_position_embeddings=256)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
LONG = dict(rope_type="longrope", short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
            long_factor=[1.0, 2.0, 3.0, 4.0, 5.0, 6.5, 7.25, 8.0])


def without(dictionary, *keys):
    return {key: value for key, value in dictionary.items() if key not in keys}


# RoPE, for every architecture that has it.
ROPE = {
    "default": {},
    "theta": dict(rope_theta=500000.0),
    "theta as an integer": dict(rope_theta=77),
    "theta inside": dict(rope_parameters=dict(rope_type="default", rope_theta=1e6)),
    "theta inside and beside": dict(rope_theta=1e4, rope_parameters=dict(rope_type="default", rope_theta=1e6)),
    "theta beside": dict(rope_theta=1e6, rope_parameters=dict(rope_type="default")),
    "theta in rope_scaling": dict(rope_theta=1e4, rope_scaling=dict(type="linear", factor=2.0, rope_theta=99.0)),
    "no type": dict(rope_scaling=dict(factor=2.0)),
    "null scaling": dict(rope_scaling=None),
    "empty parameters": dict(rope_parameters={}, rope_theta=5000.0),
    "linear": dict(rope_scaling=dict(type="linear", factor=4.0)),
    "linear without a factor": dict(rope_scaling=dict(type="linear")),
    "dynamic": dict(rope_scaling=dict(rope_type="dynamic", factor=2.0), length=1000),
    "dynamic within": dict(rope_scaling=dict(rope_type="dynamic", factor=2.0), length=100),
    "dynamic with an original length": dict(
        rope_scaling=dict(rope_type="dynamic", factor=2.0, original_max_position_embeddings=64), length=1000),
    "llama3": dict(rope_scaling=LLAMA3),
    "llama3 parameters": dict(rope_parameters=dict(LLAMA3, rope_theta=5e5)),
    "llama3 with both names": dict(rope_scaling=dict(LLAMA3, type="llama3")),
    "llama3, longer beside": dict(rope_scaling=LLAMA3, original_max_position_embeddings=128),
    "llama3, shorter beside": dict(rope_scaling=LLAMA3, original_max_position_embeddings=16),
    "llama3, only beside": dict(rope_scaling=without(LLAMA3, "original_max_position_embeddings"), original_max_position_embeddings=128),
    "llama3 without an original length": dict(rope_scaling=without(LLAMA3, "original_max_position_embeddings")),
    "llama3 without low_freq_factor": dict(rope_scaling=without(LLAMA3, "low_freq_factor")),
    "empty scaling beside parameters": dict(rope_scaling={}, rope_parameters=dict(LLAMA3, rope_theta=5e5)),
    "null scaling beside parameters": dict(rope_scaling=None, rope_parameters=dict(YARN, rope_theta=5e5)),
    "scaling and other parameters": dict(rope_scaling=dict(type="linear", factor=2.0), rope_parameters=dict(LLAMA3, rope_theta=5e5)),
    "scaling beside theta and parameters": dict(rope_theta=300.0, rope_scaling=YARN, rope_parameters=dict(rope_type="default", rope_theta=9e5)),
    "yarn": dict(rope_scaling=YARN),
    "yarn, old name": dict(rope_scaling=dict(without(YARN, "rope_type"), type="yarn", finetuned=True)),
    "yarn, longer beside": dict(rope_scaling=YARN, original_max_position_embeddings=128),
    "yarn, only beside": dict(rope_scaling=without(YARN, "original_max_position_embeddings"), original_max_position_embeddings=32),
    "yarn without an original length": dict(rope_scaling=without(YARN, "original_max_position_embeddings")),
    "yarn by ratio": dict(rope_scaling=dict(YARN, factor=None)),
    "yarn by a ratio from beside": dict(rope_scaling=dict(YARN, factor=None), original_max_position_embeddings=32),
    "yarn with betas": dict(rope_scaling=dict(YARN, beta_fast=16.0, beta_slow=2.0)),
    "yarn with betas of zero": dict(rope_scaling=dict(YARN, beta_fast=0, beta_slow=0)),
    "yarn not truncated": dict(rope_scaling=dict(YARN, truncate=False)),
    "yarn truncate null": dict(rope_scaling=dict(YARN, truncate=None)),
    "yarn attention factor": dict(rope_scaling=dict(YARN, attention_factor=1.5)),
    "yarn mscale": dict(rope_scaling=dict(YARN, mscale=1.0, mscale_all_dim=0.5)),
    "yarn mscale alone": dict(rope_scaling=dict(YARN, mscale=0.7)),
    "yarn mscale and attention factor": dict(rope_scaling=dict(YARN, mscale=1.0, mscale_all_dim=0.5, attention_factor=1.25)),
    "yarn factor one": dict(rope_scaling=dict(YARN, factor=1.0)),
    "longrope short": dict(rope_scaling=dict(LONG, original_max_position_embeddings=64), length=64),
    "longrope long": dict(rope_scaling=dict(LONG, original_max_position_embeddings=64), length=65),
    "longrope with a factor": dict(rope_scaling=dict(LONG, original_max_position_embeddings=64, factor=2.0), length=200),
    "longrope beside": dict(rope_scaling=LONG, original_max_position_embeddings=32, length=40),
    "longrope without an original length": dict(rope_scaling=LONG, length=40),
    "longrope attention factor": dict(rope_scaling=dict(LONG, original_max_position_embeddings=64, attention_factor=1.5), length=40),
    "longrope of another width": dict(rope_scaling=dict(LONG, short_factor=[1.0] * 7, original_max_position_embeddings=64), length=40),
    "mrope": dict(rope_scaling=dict(type="mrope", factor=2.0)),
    "su": dict(rope_scaling=dict(type="su", factor=2.0)),
    "parts of heads, linear": dict(rope_parameters=dict(rope_type="linear", factor=2.0, partial_rotary_factor=0.5)),
    "by layer type": dict(rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=1e4),
                                               sliding_attention=dict(rope_type="default", rope_theta=1e6)),
                          layer_types=["full_attention"] * 3),
}
FULL, SLIDING = "full_attention", "sliding_attention"
WINDOWS = {
    "windows off": {},
    "window without its switch": dict(sliding_window=8),
    "window": dict(use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "window of no layer": dict(use_sliding_window=True, sliding_window=8, max_window_layers=28),
    "window null": dict(use_sliding_window=True, sliding_window=None, max_window_layers=0),
    "window by default": dict(use_sliding_window=True, max_window_layers=2),
    "layer types": dict(use_sliding_window=True, sliding_window=8, layer_types=[SLIDING, FULL, SLIDING]),
    "layer types over max_window_layers": dict(use_sliding_window=True, sliding_window=8, max_window_layers=0, layer_types=[FULL, FULL, SLIDING]),
    "layer types, window by default": dict(use_sliding_window=True, layer_types=[FULL, SLIDING, FULL]),
    "layer types, full, switched off": dict(use_sliding_window=False, sliding_window=8, layer_types=[FULL] * 3),
    "layer types, sliding, switched off": dict(use_sliding_window=False, sliding_window=8, layer_types=[FULL, SLIDING, FULL]),
    "layer types, sliding, no switch": dict(sliding_window=8, layer_types=[SLIDING] * 3),
    "layer types, sliding, window null": dict(use_sliding_window=True, sliding_window=None, layer_types=[SLIDING] * 3),
    "layer types, older name": dict(layer_types=["attention", FULL, "attention"]),
    "layer types, too few": dict(layer_types=[FULL]),
    "layer types, unknown": dict(layer_types=[FULL, "chunked_attention", FULL]),
}
MISTRAL_WINDOWS = {
    "window by default": {},
    "window": dict(sliding_window=8),
    "window null": dict(sliding_window=None),
}
# Accepted by transformers, where they have no effect or their effect differs by version; Strata refuses them.
STRICTER = {
    "two types": dict(rope_scaling=dict(type="linear", rope_type="dynamic", factor=2.0)),
    "parts of heads": dict(rope_parameters=dict(rope_type="default", partial_rotary_factor=0.5)),
    "parts of heads beside": dict(partial_rotary_factor=0.5),
    "yarn attention factor of zero": dict(rope_scaling=dict(YARN, attention_factor=0.0)),
    "linear below one": dict(rope_scaling=dict(type="linear", factor=0.5)),
    "by layer type without layer types": dict(rope_parameters=dict(full_attention=dict(rope_type="linear", factor=2.0))),
    "an unknown parameter": dict(rope_scaling=dict(type="linear", factor=2.0, mrope_section=[1, 2])),
}


def measure(config, length):
    """The model's own frequencies and windows, or None when transformers fails to load or to run it."""
    try:
        parsed = AutoConfig.for_model(**config)
        model = transformers.AutoModelForCausalLM.from_config(parsed)
        model(torch.arange(length)[None] % config["vocab_size"])
    except Exception as error:  # of many kinds
        return {"refused": f"{type(error).__name__}: {error}"[:160]}
    rotary = model.model.rotary_emb
    types = getattr(parsed, "layer_types", None)
    window = getattr(parsed, "sliding_window", None)
    if config["model_type"] == "llama":
        windows = [0] * 3
    elif config["model_type"] == "mistral":
        windows = [window or 0] * 3
    else:
        windows = [window if kind == SLIDING else 0 for kind in types]
    return {"inverse_frequency": rotary.inv_freq.double().tolist(), "attention_factor": float(rotary.attention_scaling), "windows": windows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "model_configurations.json")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    cases = []

    def add(name, model_type, changes, stricter=False):
        changes = copy.deepcopy(changes)
        length = changes.pop("length", 40)
        config = {"model_type": model_type, **SIZES, **changes}
        text = json.dumps(config)  # transformers changes the dictionaries that it is given
        result = measure(config, length)
        cases.append({"name": f"{model_type}: {name}", "length": length, "config": json.loads(text), **result})
        if stricter:
            assert "refused" not in result, name
            cases[-1]["stricter"] = True

    for name, changes in ROPE.items():
        for model_type in ("llama", "qwen3") if name != "by layer type" else ("qwen3",):
            add(name, model_type, changes)
    for model_type in ("qwen2", "qwen3"):
        for name, changes in WINDOWS.items():
            add(name, model_type, changes)
    for name, changes in MISTRAL_WINDOWS.items():
        add(name, "mistral", changes)
    for name, changes in STRICTER.items():
        add(name, "llama", changes, stricter=True)
    document = {"made_with": {"transformers": transformers.__version__, "torch": torch.__version__}, "cases": cases}
    lines = ",\n".join(json.dumps(case) for case in cases)
    arguments.out.write_text(f'{{"made_with": {json.dumps(document["made_with"])}, "cases": [\n{lines}\n]}}\n')
    print(f"{len(cases)} cases, {sum('refused' in case for case in cases)} refused by transformers")


if __name__ == "__main__":
    main()
