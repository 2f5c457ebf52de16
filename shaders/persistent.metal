// The layer from the convolution on, and the input projection before it if kInProjection, in one
// dispatch of workers that take tasks in ticket order (include/tasks.h).
//   W_in, X [R][k] on 16 bytes, input_norm_weight [k] (if kNorm): as in projection.metal, if
//   kInProjection; W_out; residual [R][H] if kResidual; output [R][H]
//   conv_weight .. mask: as in core.metal; conv_out is written whole and is not conv_in
//   Y [R][y_stride], G and O [R][Hv][Dv]: cross threadgroups; without kInProjection Y is given
//   records, edges: the program; counters: its block; control: the block of the state or call
//   times [tasks], waits [tasks][8]: what the instrumented build notes (include/times.h)
//   kSlots: conv_in is conv_out and state_in is state_out, two slots each; the committed one is
//   read, the other one written and then committed
// Launch: 256 threads; grid (workers), any number; with kTimes one threadgroup more, the first. At
// most 32 rows. Threadgroup memory: 64 Dk + 256 (16 NT + 5) + 2224 bytes.
// Who: a task belongs to the worker that drew its ticket; what a task writes nobody else does.
// A launch that fails leaves outputs undefined, the committed states whole and kControlStatus set.
// metal_host: msl 3.2
#include "include/kernel.h"
#include "include/overlap.h"
#include "include/worker.h"

template <typename T, int DK, int DV, int NT, int U, bool PIPE>
[[kernel, max_total_threads_per_threadgroup(WORKER)]] void persistent(
    device const uint4* W_in [[buffer(0)]], device const uint4* X [[buffer(1)]],
    device const uint4* input_norm_weight [[buffer(2)]], device const uint4* W_out [[buffer(3)]],
    device const T* residual [[buffer(4)]], device const T* conv_weight [[buffer(5)]],
    device const T* conv_in [[buffer(6)]], device T* conv_out [[buffer(7)]],
    device const uchar* A_log [[buffer(8)]], device const uchar* dt_bias [[buffer(9)]],
    device const T* norm_weight [[buffer(10)]], device const float* state_in [[buffer(11)]],
    device float* state_out [[buffer(12)]], device const uchar* mask [[buffer(13)]],
    coherent(device) device T* Y [[buffer(14)]], coherent(device) device T* G [[buffer(15)]],
    coherent(device) device T* O [[buffer(16)]], coherent(device) device T* output [[buffer(17)]],
    device const TaskRecord* records [[buffer(18)]], device const TaskEdge* edges [[buffer(19)]],
    device atomic_uint* counters [[buffer(20)]], device atomic_uint* control [[buffer(21)]],
    constant ProjectionArgs& in_args [[buffer(22)]],
    constant ProjectionArgs& out_args [[buffer(23)]], constant GdnArgs& gdn [[buffer(24)]],
    constant TaskArgs& args [[buffer(25)]],
    device TaskTime* times [[buffer(26), function_constant(kTimes)]],
    device TaskWait* waits [[buffer(27), function_constant(kTimes)]],
    uint group [[threadgroup_position_in_grid]], uint groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint workers = kTimes ? groups - 1 : groups;
  if (kTimes && group == 0) {
    if (tid == 0) count_ticks(counters, workers);
    return;
  }
  typedef coherent(device) device const uint4* Words;
  threadgroup WorkerMemory<DK, NT> mem;
  inputs_ready();
  Launch launch;
  launch.counters = counters;
  launch.control = control;
  launch.edges = edges;
  launch.left = mem.left;
  if (kTimes) {
    launch.times.tasks = times;
    launch.times.waits = waits;
    launch.times.counters = counters;
  }
  launch.spin_limit = args.spin_limit;
  launch.sg = sg;
  launch.lane = lane;
  if (tid < WORKER / 32) mem.left[tid] = 0;
  if (tid == 0) {
    mem.epoch = peek(counters + kCounterEpoch);
    mem.ticket[0] = enter(launch) ? draw(counters, mem.epoch * (args.tasks + workers)) : args.tasks;
  }
  if (kInProjection && kNorm) all_squares<T>(in_args, X, mem.squares, sg, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  launch.epoch = mem.epoch;
  const uint slot = kSlots ? peek(control + kControlSlot) & kSlotCommitted : 0;
  HeadBuffers<T> in;
  in.conv_weight = conv_weight;
  in.conv_state = conv_in + ulong(slot) * args.conv_slot;
  in.A_log = A_log;
  in.dt_bias = dt_bias;
  in.norm_weight = norm_weight;
  in.state_in = state_in + ulong(slot) * args.state_slot;
  in.state_out = state_out + ulong(kSlots ? 1 - slot : 0) * args.state_slot;
  in.mask = mask;
  device T* conv_to = conv_out + ulong(kSlots ? 1 - slot : 0) * args.conv_slot;

  uint task = mem.ticket[0];
  for (uint turn = 1; task < args.tasks; turn ^= 1) {
    if (kTimes && tid == 0) {
      times[task].worker = group - 1;
      times[task].drawn = ticks(launch.times);
    }
    uint next = 0;
    bool last = false;
    if (tid == 0) {  // asked for now, needed at the end of the task
      next = draw(counters, launch.epoch * (args.tasks + workers));
      last = ending(launch, task);
    }
    const uint stage = records[task].stage, tile = records[task].tile, part = records[task].part;
    WholeRecord whole;
    whole.launch = launch;
    whole.task = task;
    whole.first = records[task].first_wait;
    whole.count = records[task].waits;
    if (kInProjection && stage == kTaskInProj) {
      const uint row = row_of<T>(in_args, part, lane);
      device const uint4* x = row_words<T>(in_args, X, row, lane);
      if (kNorm) {
        NormedRows<T, device const uint4*> rows;
        rows.x = x;
        rows.w = input_norm_weight + lane_pair(lane) * (sizeof(T) / 2);
        rows.inv = row_scale(&mem.squares[part][0][row % 8], 8, in_args.k, in_args.eps);
        projection_task<T, NT, U, PIPE>(in_args, tile, part, W_in, rows, Y, false, residual,
                                        mem.projection, tid, sg, lane, Nothing());
      } else {
        PlainRows<T, device const uint4*> rows;
        rows.x = x;
        projection_task<T, NT, U, PIPE>(in_args, tile, part, W_in, rows, Y, false, residual,
                                        mem.projection, tid, sg, lane, Nothing());
      }
    } else if (stage == kTaskHead) {
      head_task<T, DK, DV>(gdn, in, tile, part, Y, O, mem.head, tid, sg, lane, whole);
    } else if (stage == kTaskGatedNorm) {
      if (wait_for(whole, 0)) gated_norm_task<T, DK, DV>(gdn, in, tile, part, O, Y, G, sg, lane);
    } else if (stage == kTaskConvState) {
      if (wait_for(whole, 0)) conv_state_task<T>(gdn, in, conv_to, Y, tile, part, tid);
    } else if (stage == kTaskOutProj) {
      BySegment ready;
      ready.launch = launch;
      ready.task = task;
      ready.first = whole.first;
      PlainRows<T, Words> rows;
      rows.x = row_words<T>(out_args, (Words)G, row_of<T>(out_args, part, lane), lane);
      projection_task<T, NT, U, PIPE>(out_args, tile, part, W_out, rows, output, kResidual,
                                      residual, mem.projection, tid, sg, lane, ready);
    }
    const bool left = has_left(launch);  // asked before the barrier: the next task may set it
    if (tid == 0) mem.ticket[turn] = last || left ? args.tasks : next;
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    if (kTimes) {  // before any of the signals, which this SIMD group gives
      if (tid == 0) times[task].over = ticks(launch.times);
      simdgroup_barrier(mem_flags::mem_none);
    }
    const uint signals = left ? 0 : records[task].signals;
    if (tid < signals) publish(launch, records[task].first_signal + tid);
    simdgroup_barrier(mem_flags::mem_none);  // a lane must not wait for one of its own SIMD group
    task = mem.ticket[turn];
  }
  if (tid == 0) leave(launch, workers, kSlots);
}

#if TMF_TILES(1, 2)
#define TMF_TWO(dk, dv) \
  TMF_KERNELS("persistent", "dk" #dk "dv" #dv "nt1u2p__grid", persistent, dk, dv, 1, 2, true)
#else
#define TMF_TWO(dk, dv)
#endif
#if TMF_TILES(1, 4)
#define TMF_FOUR(dk, dv) \
  TMF_KERNELS("persistent", "dk" #dk "dv" #dv "nt1u4__grid", persistent, dk, dv, 1, 4, false)
#else
#define TMF_FOUR(dk, dv)
#endif
#define TMF_FOR_DIMS(dk, dv) TMF_TWO(dk, dv) TMF_FOUR(dk, dv)
#include "include/dims.h"
