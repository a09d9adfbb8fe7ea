#!/usr/bin/env python3
"""Times `fathom capture` beside the same recording made with PyTorch hooks and h5py.

    python3 probes/lab/peer_pytorch.py --fathom build/fathom --model datasets/models/mhar-h8 \
        --text datasets/text/opticks.txt

Both sides read the same windows of the same text in the same batches on the CPU in float32 with the
same number of threads, and write the same tensors to an HDF5 file on the same disk: routing weights,
rms / absmax / channel / median of every `in`, `out` and `state`, and the loss of every token. fathom
also writes its per-sequence statistics. Runs alternate; medians of whole-process wall times are
printed, with the time of the PyTorch loop alone (without imports and loading) beside them, since a
notebook pays the start-up once. Needs torch, h5py, numpy and safetensors.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time


def model_class(torch):
    """A qwen3_attnres model of mode full or full_mh in eager PyTorch, as a notebook would write it."""
    nn, F = torch.nn, torch.nn.functional

    class RMSNorm(nn.Module):
        def __init__(self, width, eps):
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight

    class Router(nn.Module):
        """sources -> (mix, weights [B,T,H,S])"""

        def __init__(self, width, heads, eps):
            super().__init__()
            self.proj, self.norm = nn.Linear(width, 1, bias=False), RMSNorm(width, eps)
            self.heads = heads

        def forward(self, sources):
            v = torch.stack(sources)
            split = (*v.shape[:-1], self.heads, v.shape[-1] // self.heads)
            logits = (self.norm(v) * self.proj.weight[0]).view(split).sum(-1)
            weights = logits.softmax(0)
            mix = (weights.unsqueeze(-1) * v.view(split)).sum(0).flatten(-2)
            return mix, weights.permute(1, 2, 3, 0)

    class Attention(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.q, self.kv, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
            d = c["hidden_size"]
            self.q_proj = nn.Linear(d, self.q * self.dim, bias=False)
            self.k_proj = nn.Linear(d, self.kv * self.dim, bias=False)
            self.v_proj = nn.Linear(d, self.kv * self.dim, bias=False)
            self.o_proj = nn.Linear(self.q * self.dim, d, bias=False)
            self.q_norm, self.k_norm = RMSNorm(self.dim, c["rms_norm_eps"]), RMSNorm(self.dim, c["rms_norm_eps"])

        def forward(self, x, cosine, sine):
            B, T, _ = x.shape
            q = self.q_norm(self.q_proj(x).view(B, T, self.q, self.dim)).transpose(1, 2)
            k = self.k_norm(self.k_proj(x).view(B, T, self.kv, self.dim)).transpose(1, 2)
            v = self.v_proj(x).view(B, T, self.kv, self.dim).transpose(1, 2)

            def rotate(y):
                a, b = y.chunk(2, -1)
                return y * cosine + torch.cat((-b, a), -1) * sine

            repeat = self.q // self.kv
            k, v = rotate(k).repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
            out = F.scaled_dot_product_attention(rotate(q), k, v, is_causal=True)
            return self.o_proj(out.transpose(1, 2).reshape(B, T, -1))

    class MLP(nn.Module):
        def __init__(self, c):
            super().__init__()
            d, f = c["hidden_size"], c["intermediate_size"]
            self.gate_proj = nn.Linear(d, f, bias=False)
            self.up_proj = nn.Linear(d, f, bias=False)
            self.down_proj = nn.Linear(f, d, bias=False)

        def forward(self, x):
            return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

    class Layer(nn.Module):
        def __init__(self, c):
            super().__init__()
            d, eps, heads = c["hidden_size"], c["rms_norm_eps"], c["attnres_num_heads"]
            self.attn_site, self.mlp_site = Router(d, heads, eps), Router(d, heads, eps)
            self.input_layernorm, self.post_attention_layernorm = RMSNorm(d, eps), RMSNorm(d, eps)
            self.self_attn, self.mlp = Attention(c), MLP(c)

    class Model(nn.Module):
        def __init__(self, c):
            super().__init__()
            d = c["hidden_size"]
            self.embed_tokens = nn.Embedding(c["vocab_size"], d)
            self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
            self.final_site = Router(d, c["attnres_num_heads"], c["rms_norm_eps"])
            self.norm = RMSNorm(d, c["rms_norm_eps"])
            half = c["head_dim"] // 2
            angle = torch.arange(c["max_position_embeddings"])[:, None] * c["rope_theta"] ** (
                -torch.arange(half) / half)
            self.cosine, self.sine = torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()

        def forward(self, ids):
            T = ids.shape[1]
            rope = self.cosine[:T], self.sine[:T]
            sources = [self.embed_tokens(ids)]
            for layer in self.layers:
                x, _ = layer.attn_site(sources)
                sources.append(layer.self_attn(layer.input_layernorm(x), *rope))
                x, _ = layer.mlp_site(sources)
                sources.append(layer.mlp(layer.post_attention_layernorm(x)))
            x, _ = self.final_site(sources)
            return F.linear(self.norm(x), self.embed_tokens.weight)

    return Model


def load(torch, folder):
    from safetensors.torch import load_file

    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    if config["attnres_mode"] not in ("full", "full_mh"):
        sys.exit("this peer covers the modes full and full_mh")
    model = model_class(torch)(config)
    state = {}
    for name, value in load_file(os.path.join(folder, "model.safetensors")).items():
        name = name.removeprefix("model.")
        for kind in ("attn", "mlp", "final"):
            name = name.replace(f"{kind}_res_proj", f"{kind}_site.proj").replace(
                f"{kind}_res_norm", f"{kind}_site.norm")
        state[name] = value.float()
    model.load_state_dict(state)
    return model.eval().requires_grad_(False), config


def windows(torch, text, context, sequences):
    with open(text, "rb") as f:
        data = f.read()
    step = (len(data) - context) / (sequences - 1)
    starts = [int(i * step) for i in range(sequences)]
    return torch.tensor([list(data[s:s + context]) for s in starts])


def capture(args):
    """The recording of one process, as a notebook makes it: hooks keep, h5py writes."""
    import h5py
    import torch

    torch.set_num_threads(args.threads)
    model, config = load(torch, args.model)
    ids = windows(torch, args.text, args.context, args.sequences)
    begun = time.perf_counter()
    sites, heads = 2 * config["num_hidden_layers"] + 1, config["attnres_num_heads"]
    shape = (args.sequences, args.context)
    kept = {}

    def keep_site(index):
        def hook(_, __, result):
            mix, weights = result
            kept["weights", index] = weights
            kept["in_rms", index] = mix.pow(2).mean(-1).sqrt()
        return hook

    def keep_out(index):
        def hook(_, __, out):
            size = out.abs()
            kept["out_rms", index] = kept["state_rms", index] = out.pow(2).mean(-1).sqrt()
            kept["out_absmax", index], kept["state_absmax_channel", index] = size.max(-1)
            kept["state_absmax", index] = kept["out_absmax", index]
            kept["state_median_abs", index] = size.median(-1).values
        return hook

    for i, layer in enumerate(model.layers):
        layer.attn_site.register_forward_hook(keep_site(2 * i))
        layer.mlp_site.register_forward_hook(keep_site(2 * i + 1))
        layer.self_attn.register_forward_hook(keep_out(2 * i))
        layer.mlp.register_forward_hook(keep_out(2 * i + 1))
    model.final_site.register_forward_hook(keep_site(sites - 1))
    with h5py.File(args.out, "w") as file, torch.inference_mode():
        weights = file.create_dataset("weights", (*shape, sites, heads, sites), "f4", fillvalue=float("nan"),
                                      chunks=(1, args.context, 1, heads, sites))
        loss = file.create_dataset("loss", shape, "f4", fillvalue=float("nan"))
        rows = {}
        for first in range(0, args.sequences, args.batch):
            kept.clear()
            batch = ids[first:first + args.batch]
            logits = model(batch)
            at = slice(first, first + len(batch))
            loss[at, 1:] = torch.nn.functional.cross_entropy(
                logits[:, :-1].transpose(1, 2), batch[:, 1:], reduction="none").numpy()
            for name in sorted({name for name, _ in kept} - {"weights"}):
                columns = torch.stack([kept[name, i] for i in range(sites) if (name, i) in kept], -1).numpy()
                if name not in rows:
                    rows[name] = file.create_dataset(name, (*shape, columns.shape[-1]), columns.dtype)
                rows[name][at] = columns
            for i in range(sites):
                w = kept["weights", i].numpy()
                weights[at, :, i, :, :w.shape[-1]] = w
        mean = float(loss[:, 1:].mean())
    print(json.dumps({"loop": time.perf_counter() - begun, "loss": mean}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fathom", default="build/fathom")
    parser.add_argument("--model", default="datasets/models/mhar-h8")
    parser.add_argument("--text", default="datasets/text/opticks.txt")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", help="used by the script itself")
    args = parser.parse_args()
    if args.out:
        return capture(args)
    common = ["--text", args.text, "--context", str(args.context), "--sequences", str(args.sequences),
              "--batch", str(args.batch), "--threads", str(args.threads)]
    times = {"fathom": [], "pytorch": [], "pytorch, loop alone": []}
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(args.fathom))) as folder:
        out = os.path.join(folder, "run.h5")

        def timed(command):
            begun = time.perf_counter()
            result = subprocess.run(command, check=True, capture_output=True, text=True)
            os.remove(out)
            return time.perf_counter() - begun, result

        record = [args.fathom, "capture", args.model, *common, "-q", "-o", out, "--record", "weights"]
        for _ in range(args.runs):
            times["fathom"].append(timed(record)[0])
            seconds, result = timed([sys.executable, __file__, "--model", args.model, *common, "--out", out])
            times["pytorch"].append(seconds)
            peer = json.loads(result.stdout)
            times["pytorch, loop alone"].append(peer["loop"])
    tokens = args.context * args.sequences
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        print(f"{name:20s} {middle:8.3f} s {tokens / middle:10.0f} tokens/s")
    print(f"mean loss of the PyTorch side: {peer['loss']:.6f}")


if __name__ == "__main__":
    main()
