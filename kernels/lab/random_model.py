"""A checkpoint of a routing model with random weights, and random tokens, for timing alone.

    python3 kernels/lab/random_model.py DIR SIZE [MODE]

SIZE: 100M, 350M, 1B (12, 24, 36 layers of width 512, 1024, 1280, 8 routing heads). MODE: full_mh
(default) or standard. Writes DIR/config.json, DIR/model.safetensors (bf16) and DIR/tokens.npy
(64 sequences of 2048 ids below 32000). A matrix repeats one block of a million normal numbers, each
from another place on.
"""

import array
import json
import os
import random
import struct
import sys

SIZES = {"100M": (12, 512, 8), "350M": (24, 1024, 16), "1B": (36, 1280, 20)}
VOCABULARY, HEAD_DIM, ROUTING_HEADS = 32000, 64, 8


def tensors(layers, width, heads, routed):
    mlp, inner = 4 * width, heads * HEAD_DIM
    yield "model.embed_tokens.weight", (VOCABULARY, width)
    yield "model.norm.weight", (width,)
    for i in range(layers):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (width,)
        yield at + "post_attention_layernorm.weight", (width,)
        for name in "qkv":
            yield at + f"self_attn.{name}_proj.weight", (inner, width)
        yield at + "self_attn.o_proj.weight", (width, inner)
        yield at + "self_attn.q_norm.weight", (HEAD_DIM,)
        yield at + "self_attn.k_norm.weight", (HEAD_DIM,)
        yield at + "mlp.gate_proj.weight", (mlp, width)
        yield at + "mlp.up_proj.weight", (mlp, width)
        yield at + "mlp.down_proj.weight", (width, mlp)
        for part in ("attn", "mlp") if routed else ():
            yield at + f"{part}_res_norm.weight", (width,)
            yield at + f"{part}_res_proj.weight", (1, width)
    if routed:
        yield "model.final_res_norm.weight", (width,)
        yield "model.final_res_proj.weight", (1, width)


def bf16(x):
    return struct.unpack("<I", struct.pack("<f", x))[0] >> 16


def main():
    folder, size = sys.argv[1], sys.argv[2]
    routed = len(sys.argv) < 4 or sys.argv[3] != "standard"
    layers, width, heads = SIZES[size]
    os.makedirs(folder, exist_ok=True)
    config = {
        "model_type": "qwen3_attnres" if routed else "qwen3", "vocab_size": VOCABULARY,
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": heads, "head_dim": HEAD_DIM, "intermediate_size": 4 * width,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 4096,
        "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False,
        "torch_dtype": "bfloat16",
    }
    if routed:
        config.update(attnres_mode="full_mh", attnres_num_heads=ROUTING_HEADS,
                      attnres_gate_type="bias", attnres_use_null_source=False)
    with open(folder + "/config.json", "w") as out:
        json.dump(config, out, indent=1)
    random.seed(1)
    header, parts, offset = {}, [], 0
    blocks = {}
    for name, shape in tensors(layers, width, heads, routed):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        kind = (1.0, 0.1) if "norm" in name else (0.0, 0.5 if "res_proj" in name else 0.02)
        if kind not in blocks:
            blocks[kind] = array.array("H", (bf16(random.gauss(*kind)) for _ in range(1 << 20)))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + 2 * count]}
        offset += 2 * count
        parts.append((blocks[kind], random.randrange(1 << 20), count))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder + "/model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for block, start, count in parts:
            while count:
                piece = block[start : start + count]
                piece.tofile(out)
                start, count = 0, count - len(piece)
    shape = (64, 2048)
    head = f"{{'descr': '<i4', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    with open(folder + "/tokens.npy", "wb") as out:
        out.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)
        array.array("i", (random.randrange(VOCABULARY) for _ in range(64 * 2048))).tofile(out)


main()
