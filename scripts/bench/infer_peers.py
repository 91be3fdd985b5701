#!/usr/bin/env python3
"""Forward passes of a trained model in onnxruntime or PyTorch, for scripts/bench.sh inference.

    infer_peers.py onnx MODEL.onnx --samples N [--batch B] [--sessions]
    infer_peers.py torch MODEL --samples N [--batch B] [--bf16] [--compile]

onnx: two threads of one session or, with --sessions, two sessions of one thread each, side by side. torch: torch_ddp.py's net of this name
in channels-last, whose speed does not hang on what its weights are; --bf16: autocast; --compile: by inductor, its weights frozen. Prints
the rate of the passes alone, `samples_per_s 1234.5`, by the clock or, --by-processor, as it would be if nobody else used the CPUs.
"""
import argparse
import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

ARRAY = 4096  # samples that are there; more are these again


def onnx_passes(args):
    """The shape of a sample, and what computes a batch: one function for each of those that work side by side."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1 if args.sessions else args.threads
    sessions = [onnxruntime.InferenceSession(args.model, options, providers=["CPUExecutionProvider"])
                for _ in range(args.threads if args.sessions else 1)]
    given = sessions[0].get_inputs()[0]
    return given.shape[1:], [lambda x, session=session: session.run(None, {given.name: x})[0] for session in sessions]


def torch_passes(args):
    import torch
    from torch_ddp import MODELS

    torch.set_num_threads(args.threads)
    shape, layers = MODELS[args.model]
    form = torch.channels_last if len(shape) == 3 else torch.contiguous_format
    net = torch.nn.Sequential(*layers()).eval().to(memory_format=form)
    if args.compile:
        import torch._inductor.config
        torch._inductor.config.freezing = True
        net = torch.compile(net)

    def run(x):
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            return net(torch.from_numpy(x).contiguous(memory_format=form)).float().numpy()

    return shape, [run]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=("onnx", "torch"))
    parser.add_argument("model")
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sessions", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--by-processor", action="store_true")
    args = parser.parse_args()
    shape, passes = (onnx_passes if args.library == "onnx" else torch_passes)(args)
    data = np.random.default_rng(0).random((max(ARRAY // args.batch, 1) * args.batch, *shape), dtype=np.float32)
    batches = max(args.samples // args.batch, len(passes))
    for run in passes:
        run(data[:args.batch])
        run(data[:args.batch])
    taken = itertools.count()  # whoever is ready takes the next batch

    def work(run):
        while (batch := next(taken)) < batches:
            at = batch * args.batch % len(data)
            run(data[at:at + args.batch])

    clock = (lambda: time.process_time() / args.threads) if args.by_processor else time.perf_counter
    start = clock()
    with ThreadPoolExecutor(len(passes)) as pool:
        list(pool.map(work, passes))
    print(f"samples_per_s {batches * args.batch / (clock() - start):.1f}")


if __name__ == "__main__":
    main()
