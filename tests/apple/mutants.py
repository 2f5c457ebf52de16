"""Mistakes put into csrc/mps, each with the scenario that shows it and what has to be said."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import small
import torch
from fake_device import Device


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    said: str  # regular expression, in an error or a fault
    scenario: Callable[[Device], None]


# ---------------------------------------------------------------- scenarios


def call(device: Device) -> None:
    """Two dependent dispatches over views with an offset; the numbers are checked."""
    x, weight, y, z = small.tensors(offset=64)
    small.encode(small.twice(), [x, weight, y, z])
    device.synchronize()
    once = small.norm(x.cpu(), weight.cpu())
    for got, wanted in ((y, once), (z, small.norm(once, weight.cpu()))):
        assert torch.allclose(got.cpu(), wanted), "other numbers"


def two_calls(device: Device) -> None:
    """The encoder of the second is another one."""
    for _ in range(2):
        call(device)


def among_copies(device: Device) -> None:
    """Between two operators of torch, all on one encoder."""
    x, weight, y, z = small.tensors()
    (source,) = small.tensors(1)
    x.copy_(source)
    small.encode(small.twice(), [x, weight, y, z])
    source.copy_(z)
    device.synchronize()


def after_a_copy(device: Device) -> None:
    x, weight, y, z = small.tensors()
    x.copy_(small.tensors(1)[0])
    small.encode(small.norm_lines(), [x, weight, y, z])
    device.synchronize()


def five_kilobytes(device: Device) -> None:
    lines = [*small.norm_lines()[:-2], small.norm_line(bytes(5000)), "dispatch 1 1 1 256"]
    small.encode(lines, small.tensors())


def too_many_threads(device: Device) -> None:
    small.encode(small.norm_lines(threads=512), small.tensors())


def four_threads(device: Device) -> None:
    device.compile_time(200)
    before = device.counters()["pipelines"]
    start = threading.Barrier(4)

    def work() -> None:
        buffers = small.tensors()
        start.wait()
        small.encode(small.norm_lines(), buffers)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    device.compile_time(0)
    assert device.counters()["pipelines"] - before == 1, "more than one pipeline"


def failing_pipeline(device: Device) -> None:
    device.fail_pipelines(1)
    try:
        call(device)
    except RuntimeError as error:
        if "the device says no" not in str(error):
            raise
    call(device)
    assert device.ops.open_pools() == 0, "a pool is open"


def other_kernel(device: Device) -> None:
    """A second pipeline after a first one."""
    call(device)
    kernel = "tmf_rms_norm_f16_f32_n256__group"
    assert torch.ops.mps_fusion._prepare_kernel("mps", "rms_norm", kernel) == ""


def left_over(device: Device) -> None:
    """One call leaves a library and a pipeline, for good."""
    device.synchronize()
    before = device.live() - device.live("FakeBuffer")
    call(device)
    device.synchronize()
    kept = device.live() - device.live("FakeBuffer") - before
    assert kept == 2, f"{kept} objects stay alive"


def constants(device: Device) -> None:
    kernel = "tmf_conv_f32_f32_n256__thread"
    message = torch.ops.mps_fusion._prepare_kernel("mps", "conv", kernel)
    assert message == "", message


# ---------------------------------------------------------------- mutants

ENCODER, PIPELINES, RUNNER = "metal_encoder.mm", "pipelines.mm", "mps_runner.mm"
SET_BYTES = "[encoder_ setBytes:data length:size atIndex:index];"

MUTANTS = (
    Mutant("nothing changed", ENCODER, SET_BYTES, SET_BYTES, "", two_calls),
    Mutant(
        "unbound argument", ENCODER, SET_BYTES, "(void)data, (void)size, (void)index;",
        r"buffer\(3\) has nothing bound", call,
    ),
    Mutant(
        "surplus argument", ENCODER, SET_BYTES,
        SET_BYTES + SET_BYTES.replace("index]", "index + 9]"),
        r"buffer\(12\) is bound and no argument", call,
    ),
    Mutant(
        "wrong length", ENCODER, SET_BYTES, SET_BYTES.replace("length:size", "length:size - 4"),
        r"has 44 inline bytes bound, of 48", call,
    ),
    Mutant(
        "more than 4 KB of inline bytes", RUNNER, "<= kMostInlineBytes", "<= 100000",
        r"setBytes: 5000 bytes", five_kilobytes,
    ),
    Mutant(
        "too large a threadgroup", RUNNER, "dispatch.threads <= most", "dispatch.threads <= 1024",
        r"a threadgroup of 512 threads, the limit is 256", too_many_threads,
    ),
    Mutant(
        "encoder outside the queue", RUNNER,
        "at::mps::dispatch_sync_with_rethrow(stream->queue(), ^{",
        "[](int, auto work) { work(); }(0, [&] {",
        r"outside the stream's queue", call,
    ),
    Mutant(
        "encoder kept from the last call", RUNNER, "MetalEncoder encoder(stream->commandEncoder()",
        "static id<MTLComputeCommandEncoder> kept = stream->commandEncoder();\n"
        "MetalEncoder encoder(kept",
        r"message to a dead FakeEncoder", two_calls,
    ),
    Mutant(
        "encoder ended by us", RUNNER, "encode(program, buffers, encoder);",
        "encode(program, buffers, encoder);\nstream->endKernelCoalescing();",
        r"endKernelCoalescing\(\) is for graphs only", call,
    ),
    Mutant(
        "no barrier between dispatches", ENCODER,
        "[encoder_ memoryBarrierWithScope:MTLBarrierScopeBuffers];", "",
        r"no barrier between tmf_rms_norm\S+ \(dispatch \d+\) and tmf_rms_norm", call,
    ),
    Mutant(
        "no barrier before the program", RUNNER,
        "if (!program.dispatches.front().barrier_before) encoder.barrier();", "",
        r"no barrier between a copy of PyTorch's and tmf_rms_norm", after_a_copy,
    ),
    Mutant(
        "no barrier after the program", RUNNER,
        "encode(program, buffers, encoder);\n        encoder.barrier();",
        "encode(program, buffers, encoder);",
        r"no barrier between tmf_rms_norm\S+ \(dispatch \d+\) and a copy of PyTorch's",
        among_copies,
    ),
    Mutant(
        "storage offset forgotten", ENCODER, "offset:view.offset", "offset:0", r"other numbers",
        call,
    ),
    Mutant(
        "storage offset in elements", RUNNER,
        "static_cast<uint64_t>(tensor.storage_offset()) * tensor.element_size()",
        "static_cast<uint64_t>(tensor.storage_offset())", r"other numbers", call,
    ),
    Mutant(
        "over-release", PIPELINES, '"\' has no kernel ", key, ": ", message(error));',
        '"\' has no kernel ", key, ": ", message(error));\n  [function.get() release];',
        r"message to a dead FakeFunction: release", call,
    ),
    Mutant(
        "pipeline not owned by the cache", PIPELINES, "pipelines_.emplace(key, made.give())",
        "pipelines_.emplace(key, made.get())", r"message to a dead FakePipeline", call,
    ),
    Mutant(
        "string that outlives its pool", PIPELINES, "newFunctionWithName:string(kernel.name)",
        "newFunctionWithName:[&] { static NSString* kept = string(kernel.name); return kept; }()",
        r"message to a dead NSString: UTF8String", other_kernel,
    ),
    Mutant(
        "no pool", PIPELINES, "in_pool([&] { pipeline = make(device, kernel, key); });",
        "pipeline = make(device, kernel, key);", r"autoreleased without a pool", call,
    ),
    Mutant(
        "pool left open by an error", PIPELINES,
        "in_pool([&] { pipeline = make(device, kernel, key); });",
        "@autoreleasepool { pipeline = make(device, kernel, key); }", r"a pool is open",
        failing_pipeline,
    ),
    Mutant(
        "leak", PIPELINES, "options([[MTLCompileOptions alloc] init]);",
        "options([[[MTLCompileOptions alloc] init] retain]);", r"objects stay alive", left_over,
    ),
    Mutant(
        "no lock", PIPELINES, "const std::lock_guard<std::mutex> lock(mutex_);", "",
        r"more than one pipeline", four_threads,
    ),
    Mutant(
        "fast math", PIPELINES, "options.mathMode = MTLMathModeSafe;", "",
        r"a library with fast math", call,
    ),
    Mutant(
        "no language version", PIPELINES, "options.languageVersion = MTLLanguageVersion3_1;", "",
        r"a library of language version 0", call,
    ),
    Mutant(
        "function constant without a value", PIPELINES, "const bool flag = number != 0;",
        "const bool flag = number != 0;\n    if (given == kernel.constants.end()) continue;",
        r"function constant 30\d has no value of its type", constants,
    ),
    Mutant(
        "function constant of another type", PIPELINES,
        "constant.boolean ? MTLDataTypeBool : MTLDataTypeUInt", "MTLDataTypeUInt",
        r"function constant 30\d has no value of its type", constants,
    ),
)  # fmt: skip
