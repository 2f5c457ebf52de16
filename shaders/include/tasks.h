// The program of a persistent kernel as the host writes it, included by C++ and by Metal: plain
// 32-bit fields, no padding.
// A worker takes records in the order of the table (a ticket is an index into it). It waits until
// each of the record's waits has reached its count, works, and adds to each of its signals.
// Counters never go back: launch e (from 0) waits for (e + 1) * count, in 32 bits that wrap, where
// `count` is all that one launch adds to the counter.
#pragma once

enum TaskStage {
  kTaskInProj = 0,     // tile: first of the tiles of 16 outputs; part: pass of eight rows
  kTaskHead = 1,       // convolution to rule; tile: kHeadColumns columns of a value head, the heads
                       // one after the other; part: sequence
  kTaskConvState = 2,  // tile: block of 256 channels; part: sequence
  kTaskOutProj = 3,    // as kTaskInProj; wait s belongs to segment s of K
  kTaskGatedNorm = 4,  // tile: value head; part: sequence
};

enum TaskSize {
  kHeadColumns = 32,  // of the state: one for eight lanes of a worker
};

struct TaskRecord {
  unsigned int stage;
  unsigned int tile;
  unsigned int part;
  unsigned int first_wait;  // of `waits` edges
  unsigned int waits;
  unsigned int first_signal;  // of `signals` edges
  unsigned int signals;
  unsigned int reserved0;
};

// A wait: for `count` of that counter, 0 is no wait; a signal: adds `count`.
struct TaskEdge {
  unsigned int counter;
  unsigned int count;
};

// Numbers of a launch.
struct TaskArgs {
  unsigned int tasks;
  unsigned int spin_limit;  // polls of one wait
  unsigned int conv_slot;   // elements from slot to slot of the conv states
  unsigned int state_slot;  // and of the recurrent states
};

// What the instrumented build (times.h) notes of a task, in ticks that wrap.
struct TaskTime {
  unsigned int worker;
  unsigned int drawn;  // the worker begins with it
  unsigned int over;   // before its signals
  unsigned int reserved0;
};

// And of the waits of one of its SIMD groups: when they begin and are over, and the counter that
// took most polls (one, if it was there).
struct TaskWait {
  unsigned int begin;
  unsigned int end;
  unsigned int counter;
  unsigned int polls;
};

// The dispatch that copies states to tensors updated in place. Strides in elements; the source is
// contiguous.
struct CommitArgs {
  unsigned int batch;
  unsigned int channels;
  unsigned int width;
  int conv_batch, conv_channel, conv_time;
  unsigned int heads;
  unsigned int head_elements;  // Dk * Dv
  int state_batch, state_head;
  unsigned int reserved0, reserved1;
};

// Words of the counter block, which belongs to one program on one stream.
enum CounterWord {
  kCounterEpoch = 0,    // launches that ended well
  kCounterTicket = 1,   // tickets drawn in all launches: each worker draws one too many
  kCounterArrived = 2,  // workers that took part in all launches
  kCounterBroken = 3,   // not 0: a launch failed; the block must be cleared
  kCounterTicks = 4,    // the instrumented build's clock, where it has to count
  kCounterFirst = 8,    // counter c is word kCounterFirst + kCounterStride * c
  kCounterStride = 8,   // counters do not share 32 bytes
};

// Words of the control block, which belongs to one layer state, or to a call.
enum ControlWord {
  kControlStatus = 0,  // TaskStatus; the words below say why, as the first to fail wrote them
  kControlTask = 1,    // ticket
  kControlCounter = 2,
  kControlExpected = 3,
  kControlSeen = 4,
  kControlSlot = 5,     // SlotBit: one word, so that a launch commits at once or not at all
  kControlCancel = 6,   // not 0: the launch has to give up
  kControlClaimed = 7,  // not 0: somebody writes the record
  kControlCopied = 8,   // threadgroups of `commit` that have seen kSlotReady
  kControlWords = 16,
};

enum SlotBit {
  kSlotCommitted = 1,  // which of two slots holds the committed states
  kSlotUnderWay = 2,   // a worker has begun, and not all have ended well
  kSlotReady = 4,      // a launch ended well, and `commit` has not copied what it made
};

enum TaskStatus {
  kStatusWell = 0,
  kStatusExpired = 1,    // a wait saw `seen` instead of `expected` for too long
  kStatusCancelled = 2,  // the cancellation word was set
  kStatusBroken = 3,     // an earlier launch with this counter block failed
};
