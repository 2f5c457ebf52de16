// Which fiber runs next.
#pragma once
#include "state.h"

namespace mh {
void make_ready(Fiber* f);  // f may run again
void switch_out();          // the current fiber stops; the next one runs
void yield(bool spun);      // the current fiber may run again later; spun: it only polls
bool start_next();          // starts the next threadgroup, if there is one
Fiber* pick();              // the next fiber, or none
void note_progress();       // something happened that others may wait for
void note_poll();           // a repeated read that changed nothing; may end the launch
void note_meeting(u32& quiet, u32 threads);  // threads met at a barrier or operation
void finished(Group* g);
}  // namespace mh
