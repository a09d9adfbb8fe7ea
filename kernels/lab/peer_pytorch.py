"""Reading a site in PyTorch, eager and compiled, beside lab/depth: python3 peer_pytorch.py [LAB_DEPTH]

The same work in one run: S sources of [T, d] in bf16 with their inverse rms cached, one softmax per
head, the mix and the weights, forward; and its gradients with respect to sources and folded query.
Milliseconds are medians of 50 after 10, CUDA events; `of floor`: over 2 T d (S + 1) bytes at the
rate of a copy measured here (backward: 2 T d (2 S + 2)). LAB_DEPTH, the program that lab/depth.sh
builds, is timed at the same shapes.
"""
import statistics
import subprocess
import sys

import torch

SHAPES = [(9, 8192, 7168, 1), (33, 8192, 2048, 1), (25, 8192, 512, 4),
          (49, 8192, 1024, 8), (73, 8192, 1280, 8), (9, 8192, 4096, 8)]


def median_ms(run, times=50):
    for _ in range(10):
        run()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in zip(marks, marks[1:]))


def site(values, inverse_rms, folded, heads):
    """values [S, T, d] bf16, inverse_rms [S, T], folded [d] -> mix [T, d], weights [T, heads, S]"""
    count, rows, width = values.shape
    slices = values.view(count, rows, heads, width // heads)
    logits = torch.einsum("sthc,hc->ths", slices, folded.view(heads, -1).to(values.dtype))
    logits = logits.float() * inverse_rms.t().unsqueeze(1)
    weights = torch.softmax(logits, dim=-1)
    mix = torch.einsum("ths,sthc->thc", weights.to(values.dtype), slices)
    return mix.reshape(rows, width), weights


def main():
    torch.manual_seed(1)
    block = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(block)
    rate = 2 * block.numel() / median_ms(lambda: other.copy_(block), 20) * 1e3
    del block, other
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, copy {rate / 1e12:.3f} TB/s")
    print(f"{'(S, T, d, H)':>22} {'':>9} {'forward':>9} {'of floor':>9} {'backward':>9} {'of floor':>9}")
    for count, rows, width, heads in SHAPES:
        values = torch.randn(count, rows, width, device="cuda", dtype=torch.bfloat16)
        inverse = values.float().pow(2).mean(-1).rsqrt()
        folded = torch.randn(width, device="cuda") / (width // heads) ** 0.5
        d_mix = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
        values.requires_grad_()
        folded.requires_grad_()
        for name, call in (("eager", site), ("compiled", torch.compile(site, dynamic=False))):
            with torch.no_grad():
                forward = median_ms(lambda: call(values, inverse, folded, heads))

            def both():
                values.grad = folded.grad = None
                mix, _ = call(values, inverse, folded, heads)
                mix.backward(d_mix)

            backward = median_ms(both, 20) - forward
            floor = 2 * rows * width / rate * 1e3
            print(f"{str((count, rows, width, heads)):>22} {name:>9} {forward:9.3f} "
                  f"{floor * (count + 1) / forward:9.3f} {backward:9.3f} "
                  f"{floor * (2 * count + 2) / backward:9.3f}", flush=True)
        del values, inverse, folded, d_mix
        torch.cuda.empty_cache()
    if len(sys.argv) > 1:
        for what in ("time", "pull"):
            subprocess.run([sys.argv[1], what, "1"], check=True)


if __name__ == "__main__":
    main()
