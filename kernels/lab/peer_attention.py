"""Times of PyTorch's own attention and output head at the shapes of lab/attention.cu and head.cu.

    python3 kernels/lab/peer_attention.py

Attention: scaled_dot_product_attention, causal, by each of its backends. Head: the matrix product
and cross entropy, eager and compiled, which hold all logits. Medians of 50 after 10 warm-ups, over
four input sets in turn; TFLOP/s are counted as there. Errors of bf16 are against float64.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SETS = 4


def median_ms(run, times=50):
    for i in range(10):
        run(i)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
    marks[0].record()
    for i in range(times):
        run(i)
        marks[i + 1].record()
    torch.cuda.synchronize()
    return sorted(a.elapsed_time(b) for a, b in zip(marks, marks[1:]))[times // 2]


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def attention_inputs(sequences, length, kv, dim, dtype):
    def draw(heads):
        x = torch.randn(sequences, heads, length, dim, device="cuda", dtype=dtype)
        return x.requires_grad_()

    return draw(16), draw(kv), draw(kv), torch.randn(sequences, 16, length, dim, device="cuda", dtype=dtype)


def time_attention(name, backend, sequences, length, kv, dim, dtype):
    sets = [attention_inputs(sequences, length, kv, dim, dtype) for _ in range(SETS)]

    def forward(i):
        with torch.no_grad():
            attention(*sets[i % SETS][:3])

    with sdpa_kernel(backend):
        try:
            ms = median_ms(forward)
            outs = [attention(*s[:3]) for s in sets]

            def backward(i):
                s = sets[i % SETS]
                torch.autograd.grad(outs[i % SETS], s[:3], s[3], retain_graph=True)

            back = median_ms(backward)
        except RuntimeError as error:
            print(f"{name:9} {sequences} x T {length} kv {kv} dim {dim}: {str(error).splitlines()[0]}")
            return
    flops = 2.0 * sequences * length * length * dim * 16
    print(
        f"{name:9} {str(dtype)[6:]:8} {sequences} x T {length:<5} heads 16 kv {kv:<2} dim {dim:<3}  "
        f"forward {ms:7.3f} ms {flops / ms * 1e-9:6.1f} TFLOP/s  "
        f"backward {back:7.3f} ms {2.5 * flops / back * 1e-9:6.1f} TFLOP/s"
    )


def bf16_error():
    """Relative L2 errors at one of lab/attention.cu's shapes, the same spread of inputs."""
    q, k, v = (1.5 * torch.randn(1, h, 1000, 128, device="cuda") for h in (4, 2, 2))
    d = torch.randn(1, 4, 1000, 128, device="cuda")
    exact = [x.bfloat16().double().requires_grad_() for x in (q, k, v)]
    rounded = [x.bfloat16().requires_grad_() for x in (q, k, v)]
    rows = []
    for inputs, backend in ((exact, SDPBackend.MATH), (rounded, SDPBackend.FLASH_ATTENTION)):
        with sdpa_kernel(backend):
            out = attention(*inputs)
            rows.append([out, *torch.autograd.grad(out, inputs, d.bfloat16().to(out.dtype))])
    errors = [((b.double() - a).norm() / a.norm()).item() for a, b in zip(*rows)]
    print("flash, bf16 against float64: out %.1e  d_query %.1e  d_key %.1e  d_value %.1e" % tuple(errors))


def time_head(rows, width, vocabulary):
    x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    w = (0.02 * torch.randn(vocabulary, width, device="cuda", dtype=torch.bfloat16)).requires_grad_()
    target = torch.randint(vocabulary, (rows,), device="cuda")

    def loss(x, w):
        return F.cross_entropy((x @ w.T).float(), target, reduction="sum")

    for name, function in (("eager", loss), ("compiled", torch.compile(loss))):

        def forward(_):
            with torch.no_grad():
                function(x, w)

        def both(_):
            torch.autograd.grad(function(x, w), (x, w))

        print(
            f"head {name:9} rows {rows} width {width} vocabulary {vocabulary}  "
            f"forward {median_ms(forward):7.3f} ms  forward + backward {median_ms(both):7.3f} ms"
        )


def main():
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    bf16_error()
    backends = (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION))
    for dim in (64, 128):
        for kv in (16, 4):
            for sequences, length in ((1, 2048), (4, 2048), (1, 8192)):
                for name, backend in backends:
                    time_attention(name, backend, sequences, length, kv, dim, torch.bfloat16)
    for dim in (64, 128):
        time_attention("efficient", SDPBackend.EFFICIENT_ATTENTION, 4, 2048, 16, dim, torch.float32)
    time_head(8192, 1280, 50304)


if __name__ == "__main__":
    main()
