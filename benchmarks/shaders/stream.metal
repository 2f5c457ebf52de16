// sums[t] = sum of the words of x that thread t reads, modulo 2^32.
//   x [words] in 32-bit words, words = 4 * quads; sums [threads of the grid]
//   grid: any; threadgroup: a multiple of 32. Every word is read by one thread, once.
#include <metal_stdlib>
using namespace metal;

constant uint kPattern [[function_constant(0)]];  // 0 striped, 1 interleaved16, 2 blocked

constant constexpr uint kBlock = 4096;  // quads of a block: 64 KB

struct StreamArgs {
  uint quads;
  uint threads;
};

uint sum_of(uint4 v) { return v.x + v.y + v.z + v.w; }

kernel void stream(device const uint4* x [[buffer(0)]], device uint* sums [[buffer(1)]],
                   constant StreamArgs& args [[buffer(2)]], uint t [[thread_position_in_grid]]) {
  uint sum = 0;
  if (kPattern == 0) {  // a contiguous range a thread, four bytes at a time
    device const uint* words = (device const uint*)x;
    const uint n = 4 * args.quads;
    const uint each = (n + args.threads - 1) / args.threads;
    for (uint i = t * each; i < min(n, (t + 1) * each); ++i) sum += words[i];
  } else if (kPattern == 1) {  // sixteen bytes a thread, adjacent threads adjacent
    for (uint i = t; i < args.quads; i += args.threads) sum += sum_of(x[i]);
  } else {  // a SIMD group sweeps whole blocks, four loads of a lane in flight
    const uint lane = t % 32, groups = args.threads / 32;
    for (uint block = t / 32; block * kBlock < args.quads; block += groups) {
      const uint end = min(args.quads, (block + 1) * kBlock);
      uint i = block * kBlock + lane;
      for (; i + 96 < end; i += 128) {
        const uint4 a = x[i], b = x[i + 32], c = x[i + 64], d = x[i + 96];
        sum += sum_of(a) + sum_of(b) + sum_of(c) + sum_of(d);
      }
      for (; i < end; i += 32) sum += sum_of(x[i]);
    }
  }
  sums[t] = sum;
}
