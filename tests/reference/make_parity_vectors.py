#!/usr/bin/env python3
"""Writes the tiny Hugging Face models and the numbers that tests/parity compares Strata with.

    python make_parity_vectors.py [--out tests/reference/vectors] [VARIANT...]

Needs torch >= 2.2 and transformers 4.51 to 4.57 (pip install torch "transformers==4.57.*"); nothing is downloaded. Each
variant becomes a folder:
  config.json, model.safetensors   the model, in float32, as transformers writes it
  vectors.safetensors              tokens, labels (I32; label t is the target of position t, -100 does not count); logits and
                                   grad.NAME (F64) of the mean loss over the counting tokens; train.tokens, train.labels
  vectors.json                     loss, 20 AdamW losses and gradient norms in float64 and float32, rotary frequencies,
                                   and Hugging Face's own error in fp32, bf16 and fp16 against float64 (token_losses: of the vector
                                   of every token's loss, which bounds what a fair error of their mean can be)
Weights are chosen representable in bf16 and fp16, so that one float64 reference serves every dtype: what differs from it is
arithmetic, never the rounding of weights. Errors are norm-wise: ||x - x64|| / ||x64||.
"""

import argparse
import json
import pathlib
import shutil

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from reference_models import ACCUMULATION_VARIANTS, VARIANTS, OnlyFloat64, make_exact, one_thread, rope_frequencies

LENGTH, BATCH, TRAIN_BATCHES, TRAIN_STEPS = 24, 2, 5, 20
ACCUMULATION_ROWS = (14, 64)
ADAMW = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
CLIP = 2.0  # gradient norms of these models lie on both sides of it
FP16_LOSS_SCALE = 1024.0


def random_weights(model, generator):
    """Replaces every parameter: matrices as initializer_range says, norm weights near 1, biases of the size of activations."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            value = noise * model.config.initializer_range
        elif name.endswith("bias"):
            value = 0.1 * noise
        else:
            value = 1 + 0.2 * noise
        value = value.bfloat16().float()
        value[value.abs() < 2.0 ** -16] = 0  # below, fp16 would drop bits that bf16 keeps
        parameter.data.copy_(value)


def make_batch(config, rows, length, generator):
    tokens = torch.randint(0, config.vocab_size, (rows, length + 1), generator=generator)
    tokens[:, length // 2] = tokens[:, 1]  # a token met twice: its embedding gradient has two terms
    labels = tokens[:, 1:].clone()
    labels[torch.rand(labels.shape, generator=generator) < 0.1] = -100
    labels[0, :2] = -100
    return tokens[:, :-1].contiguous(), labels


def mean_loss(model, tokens, labels, scale=1.0):
    """Backward is that of scale * mean loss; returns logits and the unscaled loss."""
    logits = model(input_ids=tokens, use_cache=False).logits
    exact = logits if logits.dtype == torch.float64 else logits.float()  # as transformers' own loss does
    loss = torch.nn.functional.cross_entropy(exact.flatten(0, 1), labels.flatten(), ignore_index=-100)
    (loss * scale).backward()
    return logits.detach(), loss.detach()


def token_losses(logits, labels):
    return torch.nn.functional.cross_entropy(logits.double().flatten(0, 1), labels, ignore_index=-100, reduction="none")


def gradients(model, scale=1.0):
    return {name: p.grad.double() / scale for name, p in model.named_parameters()}


def load(folder, dtype, attention):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention)
    return model.train()


def load_exact(folder, length):
    return make_exact(load(folder, torch.float32, "sdpa"), length)


def flat(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def relative(value, reference):
    return ((value.double() - reference).norm() / reference.norm()).item()


def own_error(folder, dtype, batches):
    """Hugging Face's error in `dtype` against float64, the larger of its two attention implementations. `batches` are pairs of
    a batch and its float64 (logits, loss, gradients). Single tensors' errors are the largest over all batches, since one of a
    few elements may come out right by luck; the rest is of the first batch."""
    scale = FP16_LOSS_SCALE if dtype == torch.float16 else 1.0
    worst = {"gradients": {name: 0.0 for name in batches[0][1][2]}}

    def note(place, key, error):
        place[key] = max(place.get(key, 0.0), error)

    for attention in ("eager", "sdpa"):
        model = load(folder, dtype, attention)
        for index, (batch, (logits64, loss64, grads64)) in enumerate(batches):
            model.zero_grad()
            logits, loss = mean_loss(model, *batch, scale)
            grads = gradients(model, scale)
            for name in grads64:
                note(worst["gradients"], name, relative(grads[name], grads64[name]))
            if index == 0:
                labels = batch[1].flatten()
                note(worst, "logits", relative(logits, logits64))
                note(worst, "loss", abs(loss.item() - loss64.item()) / loss64.item())
                note(worst, "token_losses", relative(token_losses(logits, labels), token_losses(logits64, labels)))
                note(worst, "all_gradients", relative(flat(grads), flat({name: grads64[name] for name in grads})))
    return worst


def train(model, batches):
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    losses, norms = [], []
    for step in range(TRAIN_STEPS):
        optimizer.zero_grad()
        _, loss = mean_loss(model, *batches[step % len(batches)])
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def write_model(config, options, folder, generator):
    shutil.rmtree(folder, ignore_errors=True)
    model = AutoModelForCausalLM.from_config(config)
    random_weights(model, generator)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    path = folder / "config.json"
    text = json.loads(path.read_text())
    if options.get("legacy_rope_type"):
        text["rope_scaling"]["type"] = text["rope_scaling"].pop("rope_type")
    path.write_text(json.dumps(text, indent=2, sort_keys=True) + "\n")
    if options.get("hub_names"):  # the published GPT-2: no "transformer." in front, causal masks among the weights
        weights = {name.removeprefix("transformer."): t for name, t in load_file(folder / "model.safetensors").items()}
        for layer in range(config.n_layer):
            mask = torch.ones(config.n_positions, config.n_positions).tril()
            weights[f"h.{layer}.attn.bias"] = mask.view(1, 1, *mask.shape)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def check_against_transformers(folder, batch, reference):
    """The float64 model and transformers' unchanged float32 model agree, in the loss that transformers computes itself too."""
    logits64, loss64, grads64 = reference
    model = load(folder, torch.float32, "eager")
    logits, _ = mean_loss(model, *batch)
    assert relative(logits, logits64) < 1e-5, relative(logits, logits64)
    for name, gradient in gradients(model).items():
        assert relative(gradient, grads64[name]) < 1e-4, (name, relative(gradient, grads64[name]))
    tokens, labels = batch
    shifted = torch.cat((torch.full((len(labels), 1), -100), labels[:, :-1]), dim=1)
    cut = labels.clone()
    cut[:, -1] = -100
    _, mine = mean_loss(model, tokens, cut)
    theirs = model(input_ids=tokens, labels=shifted, use_cache=False).loss
    assert abs(mine.item() - theirs.item()) < 1e-6 * theirs.item(), (mine, theirs)


def run_exact(folder, batch, length):
    model = load_exact(folder, length)
    with OnlyFloat64():
        logits, loss = mean_loss(model, *batch)
    return logits, loss, gradients(model)


def int32(tensor):
    return tensor.to(torch.int32).contiguous()


def made_with():
    return {"torch": torch.__version__, "transformers": transformers.__version__}


def make_parity(name, config, options, folder, generator):
    write_model(config, options, folder, generator)
    length = options.get("length", LENGTH)
    batch = make_batch(config, BATCH, length, generator)
    reference = run_exact(folder, batch, length)
    check_against_transformers(folder, batch, reference)
    batches = [make_batch(config, BATCH, length, generator) for _ in range(TRAIN_BATCHES)]
    losses64, norms64 = train(load_exact(folder, length), batches)
    losses32, norms32 = train(load(folder, torch.float32, "sdpa"), batches)
    logits, loss, grads = reference
    measured = [(batch, reference)] + [(b, run_exact(folder, b, length)) for b in batches]
    numbers = {
        "made_with": made_with(), "loss": loss.item(),
        "train": {**ADAMW, "clip": CLIP, "steps": TRAIN_STEPS, "losses_float64": losses64, "losses_float32": losses32,
                  "gradient_norms_float64": norms64, "gradient_norms_float32": norms32},
        "fp16_loss_scale": FP16_LOSS_SCALE,
        "hugging_face_error": {key: own_error(folder, dtype, measured) for key, dtype in
                               (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16))},
    }
    if config.model_type != "gpt2":
        frequencies, factor = rope_frequencies(config, length)
        numbers["rope"] = {"inverse_frequency": frequencies.tolist(), "attention_factor": factor}
    vectors = {"tokens": int32(batch[0]), "labels": int32(batch[1]), "logits": logits.contiguous(),
               "train.tokens": int32(torch.stack([b[0] for b in batches])),
               "train.labels": int32(torch.stack([b[1] for b in batches]))}
    vectors.update({f"grad.{key}": value.contiguous() for key, value in grads.items()})
    save_file(vectors, folder / "vectors.safetensors")
    (folder / "vectors.json").write_text(json.dumps(numbers, indent=1) + "\n")
    error = numbers["hugging_face_error"]
    drift = max(abs(a - b) / b for a, b in zip(losses32, losses64))
    print(f"{name:22} loss {loss.item():.4f}  train {losses64[0]:.3f} -> {losses64[-1]:.3f}  float32 drift {drift:.1e}  "
          f"norm {min(norms64):.2f}..{max(norms64):.2f}  gradient error "
          + "  ".join(f"{key} {error[key]['all_gradients']:.1e}" for key in error), flush=True)


def make_accumulation(name, config, options, folder, generator):
    write_model(config, options, folder, generator)
    length = options["length"]
    tokens, labels = make_batch(config, max(ACCUMULATION_ROWS), length, generator)
    labels[3, :] = -100  # a micro-batch of one may hold no counting token at all
    vectors, losses = {"tokens": int32(tokens), "labels": int32(labels)}, {}
    for rows in ACCUMULATION_ROWS:
        _, loss, grads = run_exact(folder, (tokens[:rows], labels[:rows]), length)
        losses[str(rows)] = loss.item()
        vectors.update({f"rows{rows}.grad.{key}": value.contiguous() for key, value in grads.items()})
    save_file(vectors, folder / "vectors.safetensors")
    (folder / "vectors.json").write_text(json.dumps({"made_with": made_with(), "losses": losses}, indent=1) + "\n")
    print(f"{name:22} losses {losses}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "vectors")
    parser.add_argument("variants", nargs="*", help="all when none is named")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    makers = {name: (make_parity, *rest) for name, rest in VARIANTS.items()}
    makers.update({name: (make_accumulation, *rest) for name, rest in ACCUMULATION_VARIANTS.items()})
    unknown = set(arguments.variants) - set(makers)
    if unknown:
        parser.error(f"no such variant: {', '.join(sorted(unknown))}; there are {', '.join(makers)}")
    with one_thread():
        for index, (name, (make, config, options)) in enumerate(makers.items()):
            if not arguments.variants or name in arguments.variants:
                make(name, config, options, arguments.out / name, torch.Generator().manual_seed(1000 + index))


if __name__ == "__main__":
    main()
