"""A whole MHAR model in PyTorch, timed: forward, and forward with backward, in bf16.

    python3 kernels/lab/peer_model.py SIZE [ROWS]

The model of lab/random_model.py (SIZE: 100M, 350M, 1B; random weights) over sequences of 2048
tokens. Attention is scaled_dot_product_attention; attention sublayers, MLPs and sites are compiled
each for itself, the sites with a dynamic number of sources: compiled as one graph every site is
another shape. Forward alone reads a prefix of one stack of sources, without copies. Cross entropy
over all positions. Medians after warming up.
"""

import sys
import time

import torch
import torch.nn.functional as F

SIZES = {"100M": (12, 512, 8), "350M": (24, 1024, 16), "1B": (36, 1280, 20)}
VOCABULARY, HEAD_DIM, ROUTING_HEADS, LENGTH = 32000, 64, 8, 2048


def normed(x, gain):
    x = x.float()
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gain.float()).bfloat16()


def site(values, query, gain):
    """values [S, T, d] -> [T, d]: a softmax over sources for each head."""
    s, t, d = values.shape
    keys = normed(values, gain).view(s, t, ROUTING_HEADS, -1)
    logits = torch.einsum("sthc,hc->sth", keys, query.view(ROUTING_HEADS, -1)).float()
    weights = logits.softmax(0).to(values.dtype)
    return torch.einsum("sth,sthc->thc", weights, values.view(s, t, ROUTING_HEADS, -1)).reshape(t, d)


def rotate(x, cosine, sine):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)


def attention(x, w, cosine, sine):
    t, d = x.shape
    q, k, v = F.linear(normed(x, w["norm"]), w["qkv"]).view(-1, LENGTH, 3, d // HEAD_DIM, HEAD_DIM).unbind(2)
    q, k = normed(q, w["q_norm"]), normed(k, w["k_norm"])
    q, k, v = (y.transpose(1, 2) for y in (q, k, v))
    out = F.scaled_dot_product_attention(rotate(q, cosine, sine), rotate(k, cosine, sine), v, is_causal=True)
    return F.linear(out.transpose(1, 2).reshape(t, d), w["out"])


def mlp(x, w):
    gate, up = F.linear(normed(x, w["norm"]), w["gate_up"]).chunk(2, -1)
    return F.linear(F.silu(gate) * up, w["down"])


def head_loss(x, gain, embedding, target):
    return F.cross_entropy(F.linear(normed(x, gain), embedding).float(), target, reduction="sum")


class Model:
    def __init__(self, size):
        layers, d, _ = SIZES[size]

        def make(*shape, scale=0.02, at=0.0):
            return (at + scale * torch.randn(*shape, device="cuda")).bfloat16().requires_grad_()

        self.d, self.embedding, self.gain = d, make(VOCABULARY, d), make(d, at=1)
        self.attn = [dict(norm=make(d, at=1), qkv=make(3 * d, d), q_norm=make(HEAD_DIM, at=1),
                          k_norm=make(HEAD_DIM, at=1), out=make(d, d)) for _ in range(layers)]
        self.mlp = [dict(norm=make(d, at=1), gate_up=make(8 * d, d), down=make(d, 4 * d)) for _ in range(layers)]
        self.site = [(make(d, scale=0.5), make(d, at=1)) for _ in range(2 * layers + 1)]
        angle = torch.arange(LENGTH, device="cuda")[:, None] * 10000.0 ** (
            -torch.arange(0, HEAD_DIM, 2, device="cuda") / HEAD_DIM)
        self.cosine, self.sine = angle.cos().bfloat16(), angle.sin().bfloat16()
        self.run_site = torch.compile(site, dynamic=True)
        self.run_attention, self.run_mlp = torch.compile(attention), torch.compile(mlp)
        self.run_head = torch.compile(head_loss)

    def parameters(self):
        yield from (self.embedding, self.gain)
        for w in self.attn + self.mlp:
            yield from w.values()
        for pair in self.site:
            yield from pair

    def loss(self, ids, target, stack):
        values = [F.embedding(ids, self.embedding)]
        if stack is not None:
            stack[0] = values[0]
        for i in range(len(self.site)):
            read = stack[: i + 1] if stack is not None else torch.stack(values)
            x = self.run_site(read, *self.site[i])
            if i + 1 == len(self.site):
                return self.run_head(x, self.gain, self.embedding, target)
            out = (self.run_mlp(x, self.mlp[i // 2]) if i % 2
                   else self.run_attention(x, self.attn[i // 2], self.cosine, self.sine))
            if stack is not None:
                stack[i + 1] = out
            else:
                values.append(out)


def seconds(run, times):
    for _ in range(3):
        run()
    found = []
    for _ in range(times):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return sorted(found)[len(found) // 2]


def main():
    size, rows = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8192
    model = Model(size)
    ids = torch.randint(VOCABULARY, (rows,), device="cuda")
    target = ids.roll(-1)
    stack = torch.empty(len(model.site), rows, model.d, device="cuda", dtype=torch.bfloat16)

    def forward():
        with torch.no_grad():
            model.loss(ids, target, stack)

    def train():
        for p in model.parameters():
            p.grad = None
        model.loss(ids, target, None).backward()

    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {size}, {rows} tokens, bf16")
    for name, run, times in (("forward", forward, 20), ("forward + backward", train, 10)):
        start = time.perf_counter()
        try:
            took = seconds(run, times)
        except torch.OutOfMemoryError as error:
            print(f"{name:20} {str(error)[:100]}")
            continue
        print(f"{name:20} {1e3 * took:8.2f} ms {rows / took:10.0f} tokens/s  "
              f"(with compiling {time.perf_counter() - start:.0f} s)", flush=True)


main()
