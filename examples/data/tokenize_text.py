#!/usr/bin/env python3
"""Makes a token file for Strata from text, with the tokenizer of a Hugging Face model directory.

    pip install numpy tokenizers
    examples/data/tokenize_text.py MODEL_DIR OUT.bin TEXT...

MODEL_DIR holds tokenizer.json, and config.json. A TEXT is one document; of a TEXT that ends in .jsonl, each line is a JSON object whose
"text" is a document. OUT.bin is in the llm.c format: uint16 tokens where the vocabulary has at most 65536, uint32 otherwise. Beside it
OUT.bin.meta.json is written, by which a run knows that the tokens are of its model (docs/formats.md): by this script if the Python
package xxhash is there, else by `strata inspect OUT.bin --write-meta MODEL_DIR`, which also checks every token.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys

import numpy
import tokenizers

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BATCH = 256  # documents that are tokenized at once, on all processors


def documents(paths):
    for path in paths:
        if path.suffix != ".jsonl":
            yield path.read_text(encoding="utf-8")
            continue
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.strip():
                    yield json.loads(line)["text"]


def batches(items):
    batch = []
    for item in items:
        batch.append(item)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def write_tokens(out, tokenizer, texts, end, vocab_size):
    """Returns how many tokens were written, and their type."""
    wide = vocab_size > 65536
    dtype = numpy.dtype("<u4" if wide else "<u2")
    count = 0
    header = numpy.zeros(256, "<i4")
    with out.open("wb") as file:
        file.write(header.tobytes())
        for batch in batches(texts):
            for encoding in tokenizer.encode_batch(batch, add_special_tokens=False):
                tokens = encoding.ids + ([] if end is None else [end])
                file.write(numpy.array(tokens, dtype).tobytes())
                count += len(tokens)
        header[:3] = (20240801, 7, 0) if wide else (20240520, 1, 0)
        header[2] = numpy.array([count & 0xFFFFFFFF], "<u4").view("<i4")[0]  # the file's size tells the rest
        file.seek(0)
        file.write(header.tobytes())
    return count, "uint32" if wide else "uint16"


def write_meta(out, model, count, dtype, vocab_size):
    try:
        import xxhash
    except ImportError:
        strata = shutil.which("strata") or shutil.which(REPOSITORY / "build" / "strata")
        command = [strata or "strata", "inspect", str(out), "--write-meta", str(model)]
        if strata:
            return subprocess.run(command, check=True)
        return print("now run:", *command)
    meta = {"format": "strata-tokens", "version": 1, "dtype": dtype, "tokens": count, "vocab_size": vocab_size,
            "tokenizer_xxh3": xxhash.xxh3_128_hexdigest((model / "tokenizer.json").read_bytes())}
    pathlib.Path(f"{out}.meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, metavar="MODEL_DIR")
    parser.add_argument("out", type=pathlib.Path, metavar="OUT.bin")
    parser.add_argument("texts", type=pathlib.Path, nargs="+", metavar="TEXT")
    parser.add_argument("--end", metavar="TOKEN", help='what follows each document, such as "<|endoftext|>" or "</s>"; default: nothing')
    arguments = parser.parse_args()
    tokenizer = tokenizers.Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    end = None
    if arguments.end is not None:
        end = tokenizer.token_to_id(arguments.end)
        if end is None:
            sys.exit(f"the tokenizer has no token {arguments.end!r}")
    vocab_size = tokenizer.get_vocab_size()
    count, dtype = write_tokens(arguments.out, tokenizer, documents(arguments.texts), end, vocab_size)
    print(f"{count} {dtype} tokens of a vocabulary of {vocab_size} in {arguments.out}")
    write_meta(arguments.out, arguments.model, count, dtype, vocab_size)


if __name__ == "__main__":
    main()
